from pathlib import Path

import pytest

from turnlog.packs.sources import find_pack, pack_names, packs_folder


def _folder(path: Path) -> Path:
    for name in ("git.yaml", "git.examples.yaml", "default.yaml", "schema.json"):
        (path / name).write_text("")
    return path


@pytest.mark.promise("RULE-5")
def test_the_packs_come_from_the_installation_and_never_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules").mkdir()
    monkeypatch.chdir(tmp_path)

    found = packs_folder()

    assert found.is_absolute()
    assert not found.is_relative_to(tmp_path)
    assert found.name in ("rules", "_rules")


def test_packs_are_the_yaml_files_without_the_examples(tmp_path: Path) -> None:
    assert pack_names(_folder(tmp_path)) == ["default", "git"]


def test_a_pack_is_found_by_name(tmp_path: Path) -> None:
    assert find_pack("git", _folder(tmp_path)) == tmp_path / "git.yaml"


@pytest.mark.parametrize("name", ["gti", "../secret", "git.examples", ""])
def test_an_unknown_pack_is_refused_with_those_that_are_known(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="use one of: default, git"):
        find_pack(name, _folder(tmp_path))


def test_an_installation_without_packs_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are none in"):
        find_pack("git", tmp_path)
