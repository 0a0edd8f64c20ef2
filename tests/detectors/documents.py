"""Texts that detectors must tell apart, made here: the twenty documents that quality filters were tried on, and small helpers."""

from __future__ import annotations

import base64
import random
import textwrap

LICENCE = textwrap.dedent("""\
    Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the "Software"), to deal
    in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
    copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the following conditions: the above copyright notice
    and this permission notice shall be included in all copies or substantial portions of the Software.
    THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
    FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR
    OTHER LIABILITY.
    """)
STORY = textwrap.dedent("""\
    The morning train was late again, and the platform filled with people who had long stopped looking at the clock. A woman in a green coat read the same page
    of her newspaper twice; two boys argued about which of them had seen the fox behind the sheds. When the signal finally changed, nobody moved at first.
    Later, in the carriage, the conductor told us that a swan had settled on the rails near the mill, and that the driver had climbed down to talk to it. We
    laughed, but he was serious. He had written it into his log, with the time, and the colour of the ribbon around its neck.
    """)
FRENCH = (
    "Le café était fermé depuis l’été, mais la patronne y préparait encore des crêpes pour les élèves du collège. "
    "À la fenêtre, un vieux monsieur rêvait d’un voyage à la mer, où il avait passé son enfance près d’un phare abandonné. "
)


def python_code() -> str:
    """A small class, and comments that resemble each other."""
    rows = "\n".join(f"    # case {n}: the {w} is checked before it is stored" for n, w in enumerate(["header", "offset", "length", "name", "mode"] * 6))
    head = 'class Reader:\n    """Reads records."""\n\n    def __init__(self, path: str) -> None:\n        self.path = path\n\n'
    head += '    def read(self) -> bytes:\n        with open(self.path, "rb") as f:\n            return f.read()\n\n'
    return head + rows + "\n"


def twenty() -> dict[str, tuple[str, set[str | None], bool | None]]:
    """Name -> (text, causes that may be primary, whether garbage; None = either)."""
    r = random.Random(7)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "near", "the", "river"]
    offer = "Buy the {} {} model {} today and save {} percent with free shipping on every order.\n"
    product = "".join(offer.format(r.choice(words), r.choice(words), n, r.randint(5, 60)) for n in range(60))
    html = "".join(f'<div class="item{n}"><a href="/p/{n}">&nbsp;</a><span style="color:#333">&raquo;</span></div>\n' for n in range(60))
    lorem = (
        "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua. "
        "Ut enim ad minim veniam, quis nostrud exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat. "
        "Duis aute irure dolor in reprehenderit in voluptate velit esse cillum dolore eu fugiat nulla pariatur. "
    )
    table = "\n".join("\t".join(f"{r.uniform(0, 100):.3f}" for _ in range(8)) for _ in range(80))
    banner = "We use cookies to improve your experience. Accept all cookies | Cookie settings | Privacy policy\n"
    dump = "\n".join(f"{16 * n:08x}  " + " ".join(f"{b:02x}" for b in r.randbytes(16)) + "  |................|" for n in range(80))
    dna = "\n".join("".join(r.choice("ACGT") for _ in range(70)) for _ in range(60))
    return {
        "licence": (LICENCE, {None}, False),
        "python": (python_code(), {None, "template"}, False),
        "backslashes": ("\\" * 20000, {"repetition"}, True),
        "mojibake": ((FRENCH * 3).encode().decode("cp1252", "replace"), {"mojibake"}, True),
        "replacement": ((FRENCH * 3).encode("latin-1", "replace").decode("utf-8", "replace"), {"mojibake"}, True),
        "periodic base64": (base64.b64encode(b"AB\x00" * 2000).decode(), {"encoded", "repetition"}, True),
        "json list": ("[" + ", ".join(["255"] * 800) + "]", {"repetition"}, True),
        "line": ("The same line stands here over and over.\n" * 120, {"repetition"}, True),
        "paragraph": ((STORY + "\n") * 12, {"repetition"}, True),
        "product": (product, {"template"}, True),
        "html": (html, {"markup"}, True),
        "hex dump": (dump, {"encoded"}, True),
        "random": ("".join(r.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/", k=6000)), {"encoded"}, True),
        "dna": (dna, {"table"}, False),
        "nul": (STORY[:200] + "\x00" * 4000, {"repetition"}, True),
        "lorem": (lorem * 3, {"placeholder"}, True),
        "spaces": (" " * 8000, {"repetition"}, True),
        "numbers": (table, {"table"}, False),
        "the": ("the " * 2500, {"repetition"}, True),
        "cookie banner": (STORY + banner + STORY[::-1].replace("\n", " ")[:0] + LICENCE, {"markup"}, False),
    }
