"""The `forensics` command: every module beside this one is a subcommand.

A command module defines `command`, a function with typer's annotations; its file name is the command's name. It
imports what it needs inside the function, so that `--help` stays fast.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import pkgutil
import sys
import traceback
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import forensics.cli
from forensics import __version__
from forensics.cli.common import PULSE
from forensics.errors import ForensicsError, caused_by
from forensics.text import visible

INTERRUPTED = 130  # exit status after Ctrl-C
NOT_COMMANDS = {"app", "common"}
ORDER = ("init", "replay", "dump", "curves", "postmortem", "audit", "verify", "locate", "manifest", "apply", "sidecar", "lookup", "show")
"""Commands as `--help` lists them: in the order in which they are met."""
SURROUNDINGS = {
    errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENAMETOOLONG, errno.ELOOP, errno.EFBIG,
}  # fmt: skip
"""Errors of the machine, not of ours: permissions, a full, read-only, failing or vanished disk, a limit."""

app = typer.Typer(
    name="forensics", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="From a loss spike to the documents that were consumed, a verdict and a skip list.",
)  # fmt: skip


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"forensics {__version__}")
        raise typer.Exit()


def _print_traceback() -> None:
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, (typer.Exit, typer.Abort, SystemExit)):
        traceback.print_exception(error)


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    plugin: Annotated[list[Path] | None, typer.Option(help="A Python file that adds a loader, detector, exporter or metric source.")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of an error, too.")] = False,
) -> None:
    """Read the global options."""
    if debug:
        context.call_on_close(_print_traceback)
    if plugin:
        from forensics.registry import load_plugin

        for path in plugin:
            load_plugin(path)


def _register() -> None:
    found = {m.name for m in pkgutil.iter_modules(forensics.cli.__path__)} - NOT_COMMANDS
    for name in sorted(found, key=lambda n: (ORDER.index(n) if n in ORDER else len(ORDER), n)):
        module = importlib.import_module(f"forensics.cli.{name}")
        short = (module.command.__doc__ or "").partition("\n")[0]  # as short help it is wrapped, not cut
        app.command(name.replace("_", "-"), cls=getattr(module, "CommandClass", None), short_help=short)(module.command)


def main() -> None:
    """Run the command line; print a `ForensicsError` without its traceback."""
    if sys.stdout is None or sys.stderr is None:  # closed by the caller (`>&-`)
        sys.stdout, sys.stderr = (stream or Path(os.devnull).open("w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115  open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal or a path that is no UTF-8 must not cost the answer
    _register()
    PULSE.begin()
    try:
        app(standalone_mode=True)
    except ForensicsError as error:
        typer.echo(visible(error.text()), err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in SURROUNDINGS:
            _unexpected(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free space; what was finished is kept, run the same command again" if full else "check its permissions and the disk it lies on"
        typer.echo(f"error: {visible(str(error.filename or 'a file'))} cannot be used ({visible(error.strerror or str(error))})\nhint: {hint}", err=True)
        sys.exit(1)
    except RuntimeError as error:
        if "no locator available" not in str(error):  # numba's, where neither its folder, nor the package's, nor the home folder can be written
            _unexpected(error)
        typer.echo("error: there is no folder for compiled kernels\nhint: set NUMBA_CACHE_DIR to a folder you may write to", err=True)
        sys.exit(2)
    except MemoryError as error:
        typer.echo(f"error: not enough memory ({error})\nhint: ask for fewer steps, and check the sizes that the description gives", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        _stopped()
    except SystemExit as error:
        if error.code != INTERRUPTED:  # what typer makes of Ctrl-C
            raise
        _stopped()
    except Exception as error:
        _unexpected(error)


def _stopped() -> NoReturn:
    typer.echo("stopped; finished blocks are kept, run the same command again to go on", err=True)
    sys.exit(INTERRUPTED)


def _unexpected(error: Exception) -> NoReturn:
    """Ctrl-C as a kernel or numba's compiler passes it on, a bug of ours, which keeps its traceback, or of a plug-in."""
    from forensics.registry import plugin_error

    if caused_by(error, KeyboardInterrupt):
        _stopped()
    told = plugin_error(error)
    if told is None:
        raise error
    typer.echo(visible(told.text()), err=True)
    sys.exit(told.exit_code)


if __name__ == "__main__":
    main()
