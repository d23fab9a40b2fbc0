"""The files that a command writes: checked before the work, and each appears whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hardware.errors import InputError

STANDARD_STREAMS = (0, 1, 2)
FORMATS = {"Parquet": (".parquet", ".pq"), "HTML": (".html", ".htm"), "CSV": (".csv", ".txt"), "TOML": (".toml",)}
"""What is written, and the suffixes of such files, the usual one first."""
OTHERS = (".tsv", ".json", ".jsonl", ".xlsx", ".yaml")


def output_path(name: str, form: str, inputs: Iterable[object] = ()) -> Path:
    """A file that can be written later; nothing is created. A link stands for the file that it leads to.

    `form` is one of FORMATS, `inputs` are arguments that may name files which are read (a Hugging Face model may name
    the folder of its config.json). Raises InputError if the file cannot be written, has the suffix of another format,
    or is an input or one of the command's own streams.
    """
    path, suffix = Path(name), Path(name).suffix.lower()
    if suffix not in FORMATS[form] and suffix in (*OTHERS, *(known for own in FORMATS.values() for known in own)):
        raise InputError(f"{name}: {form} is written, not {path.suffix[1:]}; name a {FORMATS[form][0]} file")
    try:
        target, found = _target(name)
    except OSError as error:
        raise InputError(f"{name}: cannot be written: {error.strerror}") from None
    read = [Path(str(given)) for given in inputs if given is not None]
    for file in (*read, *(folder / "config.json" for folder in read)):
        with suppress(OSError):
            if found and os.path.samestat(found, file.stat()):
                raise InputError(f"{name}: is an input ({file}); name another file to write")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError(f"{name}: the folder {path.parent} is not writable")
    return path


@contextmanager
def whole(*paths: str | os.PathLike[str]) -> Iterator[list[BinaryIO]]:
    """Files for writing that take their names together, when all are written, or not at all.

    A file that is replaced keeps its mode. Raises InputError if one cannot be written.
    """
    names = " and ".join(os.fspath(path) for path in paths)
    parts: list[Path] = []
    try:
        with ExitStack() as opened:
            targets = [_target(path) for path in paths]
            files: list[BinaryIO] = []
            for target, found in targets:
                parts.append(target.with_name(f".meshscout-{os.urandom(8).hex()}.part"))
                files.append(opened.enter_context(open(parts[-1], "xb")))
                if found:
                    with suppress(OSError):  # there are file systems without modes
                        os.fchmod(files[-1].fileno(), stat.S_IMODE(found.st_mode))
            yield files
        for part, (target, _) in zip(parts, targets, strict=True):
            os.replace(part, target)
    except OSError as error:
        raise InputError(f"{names}: cannot be written: {error.strerror or error}") from None
    finally:
        for part in parts:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def write_text(path: str, text: str) -> None:
    """A text file that appears whole or not at all. Raises InputError if it cannot be written."""
    with whole(path) as (file,):
        file.write(text.encode("utf-8", "replace"))


def beside(name: str, file: str | os.PathLike[str]) -> str:
    """The name of an input of `file` that was typed where this was written: from here, or else from its folder.

    Raises InputError for a file that is in neither; what is shipped under the name stays the name.
    """
    here, there = Path(name), Path(file).parent / name
    a_file = here.suffix in (".toml", ".json") or len(here.parts) > 1
    if here.exists() or not (a_file or (there / "config.json").is_file()):
        return name
    if not there.exists():
        raise InputError(f"{file}: its input {name}: no such file, here or beside it")
    return str(there)


def verb(path: str | Path) -> str:
    """What is said of a file that is about to be written."""
    return "replaced" if Path(path).exists() else "wrote"


def failure(write: Callable[[], None]) -> InputError | None:
    """What kept files from being written, such as a full disk: to be raised once the results are printed."""
    try:
        write()
    except InputError as error:
        return error
    return None


def _target(name: str | os.PathLike[str]) -> tuple[Path, os.stat_result | None]:
    """The file that a name leads to, and its status if it is there. Raises InputError for what is no plain file."""
    text = os.fspath(name) or "."
    if text.endswith(("/", "/.", "/..")) or text in (".", ".."):
        raise InputError(f"{text}: names a folder and is not a file")
    target = Path(os.path.realpath(text))
    try:
        found = os.stat(text)
    except FileNotFoundError:
        if not target.parent.is_dir():
            raise InputError(f"{text}: cannot be written: the folder {Path(text).parent} does not exist") from None
        os.stat(target.parent / ".")
        return target, None
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{text}: exists and is not a file")
    if not found.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise InputError(f"{text}: cannot be written: the file is read-only")
    for stream in STANDARD_STREAMS:
        with suppress(OSError):
            if os.path.samestat(found, os.fstat(stream)):
                raise InputError(f"{text}: is a stream of this command; name another file to write")
    return target, found
