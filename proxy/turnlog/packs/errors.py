"""What is wrong with a configuration. Apart from the loader, so that to catch is not to import it."""


class ConfigError(Exception):
    """A file that cannot be used. `line` and `column` count from 1; 0 for a file that was not read."""

    def __init__(self, path: str, line: int, column: int, message: str) -> None:
        place = f"{path}:{line}:{column}" if line else path
        super().__init__(f"{place}: {message}")
        self.path = path
        self.line = line
        self.column = column
        self.message = message


class SettingError(Exception):
    """A variable or a flag that cannot be used. `source` is its name."""

    def __init__(self, source: str, message: str) -> None:
        super().__init__(f"{source}: {message}")
        self.source = source
        self.message = message
