"""One JSON document per file: read whole, and repaired where the file was cut short."""

from __future__ import annotations

import json
import re
from typing import Any

from forensics.curves.sources.base import Head, Log

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]')
_CLOSERS = {b"{": b"}", b"[": b"]"}


def begins_document(head: Head) -> bool:
    """Whether the file could be a JSON document: an object or list that is not one of many lines."""
    text = head.data.lstrip()[:1]
    return text in (b"{", b"[") and not head.binary


def load(log: Log, objects: bool = False) -> Any:
    """The document; None where nothing of it can be read. A cut file gives what is whole; `objects`: also parts of an object."""
    data = b"".join(log.blocks(1 << 24))
    try:
        return json.loads(data)
    except ValueError:
        pass
    except RecursionError:
        log.problem("nested too deeply for a log")
        return None
    repaired = close_cut(data, objects)
    if repaired is not None:
        try:
            document = json.loads(repaired)
        except (ValueError, RecursionError):
            document = None
        if document is not None:
            log.problem("the document is cut short; what is whole is kept")
            return document
    log.problem("the JSON document cannot be read")
    return None


def close_cut(data: bytes, objects: bool = False) -> bytes | None:
    """A document cut anywhere, ended after its last whole element of a list (or, with `objects`, whole pair of an object).

    A record of which only some keys are left is not whole: its step may be among the missing ones.
    """
    stack: list[bytes] = []
    cut, closing = -1, b""
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark in _CLOSERS:
            stack.append(mark)
        elif mark in (b"}", b"]"):
            if not stack:
                return None
            stack.pop()
            if stack:
                cut, closing = token.end(), b"".join(_CLOSERS[s] for s in reversed(stack))
        elif mark == b"," and stack and (objects or stack[-1] == b"["):
            cut, closing = token.start(), b"".join(_CLOSERS[s] for s in reversed(stack))
    return data[:cut] + closing if cut > 0 and stack else None
