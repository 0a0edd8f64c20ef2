"""Sound documents that look like garbage, kind by kind, beside garbage that looks like them: found by reading what was called garbage in many other files."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from documents import STORY

from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.thresholds import read_thresholds
from forensics.stores.batch import DocumentBatch

CONFIG = read_thresholds()
THINGS = ("kernel", "initrd", "module", "loader", "image", "script", "device", "volume", "record", "folder", "session", "printer")
CITIES = ("Berlin", "Lyon", "Osaka", "Lima", "Oslo", "Turin", "Quito", "Perth", "Sofia", "Minsk", "Accra", "Hanoi")
WORK = (
    "Add a switch for colours", "Fix crash on empty input", "Document the cache", "Drop support of old systems", "Speed up the parser", "Rename two options",
    "Show progress on stderr", "Read settings from a file", "Accept dates without a year", "Warn about unknown keys", "Make tests quicker", "Say what failed",
)  # fmt: skip
RUSSIAN = "В лесу было тихо, только снег падал на ветки старых деревьев да где-то далеко стучал дятел и скрипели сани на дороге"
ADYGHE = "Цӏыф пстэури шъхьэфитэу, ялъытэныгъэрэ яфэшъуашэхэмрэкӏэ зэфэдэу къалъфы. Акъылрэ зэхэшӏыкӏ гъуазэрэ яӏэшъ, зыр зым зэкъош зэхашӏэ"


def rows(pattern: str) -> str:
    """A pattern filled twelve times: `<a>` a thing, `<b>` a city, `<k>` a number, `<w>` some work, `<s>` words of a story."""
    out = ""
    for k, (a, b, w) in enumerate(zip(THINGS, CITIES, WORK, strict=True), 10):
        out += pattern.replace("<a>", a).replace("<b>", b).replace("<k>", str(k)).replace("<w>", w).replace("<s>", mixed(STORY, k))
    return out


def mixed(words: str, n: int, between: str = " ") -> str:
    """So many of some words in an order of chance, the same every time."""
    r = random.Random(n)
    return "".join(r.choice(words.split()) + between for _ in range(n))


SOUND = {
    "catalogue of messages": rows(
        '#: views.py:<k>\nmsgid "Are you sure that you want to delete this %(model)s and each <a> of it?"\n'
        'msgstr "Soll dieses %(model)s und jedes <b> darin wirklich geloescht werden?"\n\n'
    ),
    "log": rows("Aug 14 11:<k>:05 host sshd[<k>37]: Failed password for illegal user <a> from 10.0.3.<k> port 51<k> ssh2\n"),
    "dictionary": rows("<a> [<b>] /(n) a small <a> of the sort that is kept in <b> by the harbour/a <a> for one use/(P)/\n"),
    "manual": rows(".TP\n\\fB\\-\\-is\\-<a>\\-<b>\\fR\nCheck whether FILE is a <a> that a machine of this kind can start\n"),
    "changelog": rows("- [PR #20<k>](https://code.example.org/some-project/some-tool/pull/20<k>) <w>\n"),
    "items of a list": "# Changes\n\n"
    + "".join(f"* {w}\n" for w in WORK)
    + rows("* `get_<a>_<b>` was obsolete and has been removed. Please use `read_<b>` instead.\n"),
    "commands": rows("install -d -o www-data -g root -m 0700 $site/<a>/<b>\n"),
    "index": rows('("<a>-<b>" . ("manual.info" 12<k> "Functions and Variables for <a> in <b>"))\n'),
    "long statements": rows(
        'module FD<k>(input PD, D, SP, CK, output Q); parameter GSR = "EN<k>"; FF #(.GSR(GSR), .CE("CE"), .CLK("CLK"), .LSR("LSR"), .SET("SET"),'
        ' .MODE("<b>")) _REPLACE_ (.CLK(CK), .LSR(PD), .CE(SP), .DI(D), .Q(Q)); endmodule\n'
    ),
    "contents": rows("[4.13.<k>. <w>](detailed-history-of-the-project.en.html#some-things-that-happened-in-20<k>)\n"),
    "declarations": rows("cdef int updateModel<b>(dKalmanSmoother smoother, dKalmanFilter kfilter, dStatespace model) except * nogil\n"),
    "modules": rows("instance Data.Functor.<b> a => Data.Functor.Classes (Data.Sequence.Internal.View a)\n"),
    "settings": rows("name=<a> left=2 right=3 file=loadhyph-<b>.tex patterns=hyph-<b>.pat.txt exceptions=none synonyms=<a>\n"),
    "entities": rows('<!ENTITY % iso<a> PUBLIC "-//W3C//ENTITIES Added Symbols: <b> Relations//EN" "iso9573-13/iso<a>.ent">\n'),
    "drawing": rows("1<k>.00 3<k>.00 75.00 94.00 newpath moveto lineto stroke\n1<k>.50 2<k>.00 75.00 94.00 newpath moveto lineto stroke\n"),
    "readme": '<p align="center">\n  <a href="https://example.org"><img src="https://example.org/logo.png" width="320"></a>\n</p>\n<p align="center">\n'
    + rows('  <a href="https://example.org/<a>"><img src="https://img.example.org/<a>.svg" alt="<b>"></a>\n')
    + f"</p>\n\n# A tool\n\n{STORY}\n## Install\n\nSee [the manual](https://example.org/manual).\n\n```\nmake install\n```\n",
    "program that prints a page": 'open OUT, ">page.html";\n' + rows('print OUT "<link rel=\\"stylesheet\\" href=\\"<a>.css\\" type=\\"text/css\\">\\n";\n'),
    "program that fills in": rows('    "{{first_name_<a>}} {{last_name}}-{{last_name}}",\n    "{{prefix_male}} {{first_name_<b>}} {{last_name}}",\n'),
    "script of a page": rows("const <a> = document.getElementById('<a>_<b>');\nif (<a>.<b>) { <a>.value = document.getElementById(\"<b>\").value; }\n"),
    "badges": "* builds: " + rows("[![<a>](https://ci.example.org/<a>.svg?branch=<b>)](https://ci.example.org/<a>?branch=<b>) / ") + "\n",
    "formula": "[y=" + rows("sqrt(-x^<k>*cot(x)^3+3*x^2*cot(x)^2-<k>*x*cot(x)+1)*sin(integrate(sqrt(4*x^<k>),x))+") + "x]\n",
    "alignment": "".join(f"{c}_BORBU/6-815      {mixed('VLKKIV LLGF. .... ...... ei-genl SFI NRQEF .. -----', 300 + k, '')}\n" for k, c in enumerate(CITIES)),
    "doubtful nucleotides": "\n".join(mixed("ccBaaaSg gttcNtatt ctagttRtB acgScVctcaatt taRYKgatc aatSaatga HgHaWtYgatt", k, "") for k in range(8, 28)),
    "overstruck": rows('"Hic <a>\b\b\b\b\b<b> said" <s>\n'),
    "parts by control characters": rows("\x1f\nFile: tool.info,  Node: <a>,  Next: <b>,  Up: Top\n\n<s>\n\x1f\n"),
    "picture": "static char *picture[] = {\n" + '"..........XXXX............",\n' * 17 + '"++++++++++XXXX++++++++++++"};\n' + STORY,
    "encoding of a font": STORY + "/.notdef\n" * 44 + rows("/<a>\n"),
    "unrolled loop": STORY + "  do_round(); do_round(); do_round(); do_round();\n" * 16,
    "row of a table": STORY + "GCD\t3" + "\t0" * 255 + "\n",
    "strokes of letters": rows("    '<k>': { width: <k>, points: [[5,<k>],[4,20],[5,21],[6,<k>],[6,18],[5,16],[4,15]] },\n" * 2),
    "chart of bytes": "".join("  " + "  ".join(f"{16 * k + j:02X}" for j in range(16)) + "\n" for k in range(16)),
    "verse": "刘郎笔落惊风雨。\n三山来鹤驾，万户识凫仙。\n许谁为伴，溪山风月。\n一笑相逢，蓬海路人间风月如尘土。\n",
    "ruler": "仓颉输入法码表说明\n" + ("－" * 32 + "\n") * 3 + "本表由志愿者整理，可以自由使用。\n",
    "signs": rows("÷ <k>61 × 03<k> ÷ 006<k>\n÷÷÷÷×÷÷÷÷÷ <s>\n"),
    "flags of a word list": rows("<a>/ÀÁÂñòôø\n<b>/ÀÁÂÄÆ\n"),
    "boxes": mixed("═║╔╗╚╝ ═╝╔╗ ╚╦╝ ╠═║╔ ║╗╚╝/ a letter of font", 90),
    "Adyghe": mixed(ADYGHE, 150),
}
GARBAGE = {
    "template": rows("Looking for a cheap <a> in <b>? Compare <k> offers for <a> and save up to <k>% today. See https://x.example/<a>/<b>\n"),
    "markup": STORY + rows('<div class="col-<k>"><a href="/p/<a>" onclick="track(<k>)">&nbsp;&raquo;</a></div>\n'),
    "markup in another script": STORY + rows('<li class="n"><a href="pkg/<a>.html#<k>" title="<a>">패키지 관리 도구의 기본 <k></a></li>\n'),
    "markup of long tags": STORY * 2 + rows('    <meta name="<a>-<b>" content="width=device-width, initial-scale=1.0, of the <a> in <b>">\n'),
    "markup of a README": f"# A tool\n\n## Install\n\n{STORY}\n## Use\n\n"
    + rows('<div class="nav-<k>"><a href="/<a>" onclick="go(<k>)"><img src="<b>.png"></a></div>\n'),
    "markup of a wiki in a README": f"# A tool\n\n## Install\n\n{STORY}\n## Use\n\n"
    + rows("{{cite web|url=<a>|title=|accessdate=<k>}} [[File:<b>.jpg|thumb|1<k>px]]\ndataLayer.push({'event':'e<k>','id':<k>});\n"),
    "repetition": STORY + "7669 11050	-68 -23 3262 9752	675 488 7538 9811	4190 4415 209\n" * 10,
    "encoded": STORY + rows("function <a>(e,t){var n=<k>;return e&&t?n+e[<k>]:void 0}const <b>=Symbol('<a>')").replace("\n", ""),
    "binary": STORY + "".join(chr(k % 31 + 1) + chr(97 + k % 26) * 3 for k in range(400)),
    "mojibake": STORY + STORY.replace("e", "é").encode().decode("cp949", "replace"),
    "mojibake beside a chart": "".join(f"{k:03o}\t{k}\t{chr(0x340 + k)}\ta sign\n" for k in range(0x40, 0x90))
    + STORY
    + mixed(RUSSIAN, 150).encode("koi8-r").decode("cp1251"),
    "mojibake of Cyrillic": STORY + mixed(RUSSIAN, 90).encode("cp1251").decode("iso8859-5"),
}


def garbage(text: str) -> set[str]:
    """Causes that make a text garbage."""
    return {r["cause"] for r in flag(measure(DocumentBatch.from_texts([text]), CONFIG), CONFIG).to_pylist() if r["garbage"]}


@pytest.mark.parametrize("kind", SOUND)
def test_sound_documents_are_not_garbage(kind: str) -> None:
    assert garbage(SOUND[kind]) == set()


@pytest.mark.parametrize("kind", GARBAGE)
def test_what_looks_alike_is_garbage(kind: str) -> None:
    assert garbage(GARBAGE[kind]) == {kind.split(" ")[0]}
