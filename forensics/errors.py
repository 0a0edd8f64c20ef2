"""What can go wrong for a user, as exceptions with a remedy.

Everything a user can cause is a `ForensicsError`: the command line prints its message and hint and exits without a
traceback. Any other exception is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class ForensicsError(Exception):
    """A condition the user can understand and mend.

    Args:
        message: what was read, what was found, what was expected; lower case, no full stop.
        hint: what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """As another process gets it: whatever its arguments were, with message, hint and notes."""
        return _as_it_was, (type(self), self.args), self.__dict__

    def text(self) -> str:
        """Message, notes added on the way up, and hint, as printed."""
        lines = [f"error: {self.message}", *(f"  {note}" for note in getattr(self, "__notes__", []))]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


def _as_it_was(kind: type[ForensicsError], args: tuple[Any, ...]) -> ForensicsError:
    return kind.__new__(kind, *args)


class UsageError(ForensicsError):
    """The request itself cannot be meant: an empty range, two options that exclude each other."""

    exit_code = 2


class ConfigError(ForensicsError):
    """A description or configuration file is wrong."""

    exit_code = 2


class RunError(ForensicsError):
    """The run's own files contradict each other or the request."""


class NotReplayable(ForensicsError):
    """The order of this run cannot be recomputed; the hint says what to record instead."""


class StoreError(ForensicsError):
    """A data file is truncated, foreign or corrupt."""


class SchemaError(ForensicsError):
    """A table does not have the columns its name promises."""


class PluginError(ForensicsError):
    """A foreign component failed while it was in use."""


class MissingDependency(ForensicsError):
    """An optional package is needed for what was asked.

    Args:
        package: what to import.
        extra: extra of this distribution that brings it.
        purpose: what it is needed for.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package `{package}`, which is not installed", hint=f"pip install 'pretrain-forensics[{extra}]'")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` where a known word is close to it, else an empty string."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{found[0]}`?" if found else ""


def caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether an error is of a kind, or was raised from or because of one: kernels wrap Ctrl-C in `SystemError`, once or twice, and numba trips over it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, kind):
        cause = cause.__cause__ or cause.__context__
    return cause is not None
