# syntax=docker/dockerfile:1

FROM python:3.13-slim AS build
# For example EXTRAS=[signatures], which verifies signatures and pins TLS keys.
ARG EXTRAS=
WORKDIR /src
COPY requirements.lock pyproject.toml README.md LICENSE ./
COPY proxy proxy
COPY rules rules
# The lock holds the exact versions and hashes of everything; as constraints it pins only what the
# package itself asks for, so that no development tool comes into the image.
RUN sed -e '/^ *--hash=/d' -e 's/ *\\$//' requirements.lock > constraints.txt \
    && python -m venv /opt/turnlog \
    && /opt/turnlog/bin/pip install --no-cache-dir --constraint constraints.txt ".${EXTRAS}" \
    && /opt/turnlog/bin/turnlog --help > /dev/null

FROM python:3.13-slim
LABEL org.opencontainers.image.title="turnlog" \
      org.opencontainers.image.description="A transparent proxy between an agent and its tool servers that keeps a durable, typed log of every call" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 10001 --user-group --home-dir /nonexistent --shell /usr/sbin/nologin turnlog \
    && install --directory --owner=turnlog --group=turnlog --mode=0700 /data
COPY --from=build /opt/turnlog /opt/turnlog
# Inside a container loopback would be unreachable, so it listens everywhere. Host and Origin are
# checked all the same: loopback names pass; give any other name that agents use for this
# container in TURNLOG_ALLOW_HOSTS (comma separated), e.g. TURNLOG_ALLOW_HOSTS=turnlog,turnlog.internal
ENV PATH=/opt/turnlog/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TURNLOG_DATA=/data \
    TURNLOG_LISTEN=0.0.0.0:7411
USER 10001
VOLUME /data
EXPOSE 7411
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7411/turnlog/health', timeout=2)"]
ENTRYPOINT ["turnlog"]
CMD ["serve"]
