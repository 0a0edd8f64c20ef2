"""Text to token ids by the tokenizer's own library: needed only to ask a token corpus about a page.

Everything else starts from ids, so this is the one place where `tokenizers` is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forensics.errors import MissingDependency, StoreError
from forensics.stores.batch import DocumentBatch


def encode(texts: Sequence[str], tokenizer: Path) -> DocumentBatch:
    """Texts as ids, without special tokens.

    Args:
        texts: n texts.
        tokenizer: a `tokenizer.json`, or a folder that holds one.

    Raises:
        StoreError: no such file, or one that the library does not read.
    """
    path = tokenizer / "tokenizer.json" if tokenizer.is_dir() else tokenizer
    if not path.is_file():
        raise StoreError(f"{path} does not exist", hint="pages can be turned into ids with a `tokenizer.json` only")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingDependency("tokenizers", "model", "turning a page into token ids") from error
    try:
        opened = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for files that it does not know
        raise StoreError(f"{path} is not read by the tokenizers library: {error}") from error
    clean = [t.encode("utf-8", "replace").decode("utf-8") for t in texts]
    return DocumentBatch.of_documents([np.array(e.ids, np.int64) for e in opened.encode_batch(clean, add_special_tokens=False)])
