"""PostgreSQL's programs, run as an account that they accept."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from postbus._embedded import server as embedded
from postbus._embedded.binaries import find_binaries, reachable_binaries
from postbus._embedded.supervisor.home import Home
from postbus._embedded.supervisor.programs import Account, clean_environment, spawn

_WHEELS = (16, 18)
_FROM_NPM = Path(__file__).parents[2] / ".venv"
_FROM_DEBIAN = Path("/usr/lib/postgresql")


def bin_dir(version: int) -> str | None:
    """Where `make server-…` has put the programs of a version; None stands for a wheel, where ours are."""
    if version in _WHEELS:
        return None
    from_npm = _FROM_NPM / f"postgresql-{version}" / "bin"
    return str(from_npm.resolve() if from_npm.exists() else _FROM_DEBIAN / str(version) / "bin")


@dataclass(frozen=True)
class Installation:
    """Programs of one version, and whom they run as. None stands for ourselves."""

    bin_dir: Path
    version: int
    account: Account | None

    @classmethod
    def find(cls, folder: Path, version: int | None = None) -> Installation:
        """The programs that PG names in the environment (18 if it does not), for servers below `folder`."""
        version = version or int(os.environ.get("PG", "18"))
        binaries = find_binaries(version, bin_dir(version))
        account = embedded._server_account(Home(folder), guarded=False)
        embedded._check_entrance(folder, account)
        return cls(reachable_binaries(binaries, account), binaries.version, account)

    def own(self, path: Path) -> None:
        """Give a file or folder to the account."""
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid, follow_symlinks=False)

    def spawn(
        self,
        program: str | Path,
        *options: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        death_signal: int = signal.SIGKILL,
        pass_fds: Collection[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a program that the kernel ends when the thread that called this ends, in whatever way.

        So it is called in the thread of the event loop, which lives as long as the run.
        """
        with log.open("ab") as output:
            return spawn(
                [str(self.bin_dir / program), *options],
                account=self.account,
                death_signal=death_signal,
                env={**clean_environment(), **(env or {})},
                output=output,
                cwd="/",
                pass_fds=pass_fds,
                start_new_session=True,  # so that Ctrl-C in our terminal does not reach it
            )
