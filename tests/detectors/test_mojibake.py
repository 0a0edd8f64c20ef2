"""Wrong decodings are recognised and named, charts of character sets are not; the screen misses nothing that ftfy sees."""

from __future__ import annotations

import random

import ftfy
import numpy as np
import pytest
from ftfy.badness import is_bad

from forensics.detectors import pairs
from forensics.detectors.flagging import flag
from forensics.detectors.measuring import measure
from forensics.detectors.mojibake import examine, repair
from forensics.detectors.screen import screen
from forensics.detectors.thresholds import read_thresholds
from forensics.stores.batch import DocumentBatch

PROSE = {
    "fr": "Le café était fermé depuis l'été, mais la patronne y préparait encore des crêpes pour les élèves du collège voisin. "
    "À la fenêtre, un vieux monsieur rêvait d'un voyage à la mer, où il avait passé son enfance près d'un phare abandonné. ",
    "de": "Die Brücke über den Fluß war gesperrt, und für größere Wagen gab es keinen Umweg. Der Müller erzählte später, er habe "
    "während der Nacht Geräusche gehört, die er sich nicht erklären könne: Schläge, dann ein Läuten, schließlich völlige Stille. ",
    "es": "El niño pequeño soñaba con montañas que no había visto jamás. Su compañero le decía que mañana, después de la lección, irían "
    "al jardín botánico, donde también crecían árboles traídos de América por un capitán inglés. ",
    "pl": "Wczoraj wieczorem usłyszeliśmy, że pociąg się spóźni, więc zostaliśmy w świetlicy i piliśmy gorącą herbatę. Później okazało się, "
    "że łabędź usiadł na torach i nikt nie chciał go spłoszyć, bo miał na szyi żółtą wstążkę. ",
    "tr": "Öğretmen sınıfa girdiğinde öğrenciler çoktan susmuştu. Dışarıda güneş batıyor, gölün üstünde kuşlar dönüyordu; küçük bir çocuk "
    "pencereden bakıp şöyle dedi: yarın bizim köyde düğün var, hepiniz gelin. ",
    "ru": "Вчера вечером поезд опоздал на двадцать минут, и никто на станции не удивился. Машинист рассказал, что на рельсах сидел лебедь "
    "с жёлтой лентой на шее, и что он долго уговаривал его уйти. Мы смеялись, но он говорил серьёзно. ",
    "uk": "Учора ввечері потяг запізнився на двадцять хвилин, і ніхто на станції не здивувався. Машиніст розповів, що на рейках сидів лебідь "
    "із жовтою стрічкою на шиї, і що він довго вмовляв його піти. Ми сміялися, але він говорив поважно. ",
    "zh": "昨天晚上火车晚点了二十分钟，站台上没有人感到惊讶。司机后来告诉我们，有一只天鹅坐"
    "在铁轨上，脖子上系着黄色的丝带，他劝了很久它才离开。我们都笑了，可是他说得很认真。",
    "ja": "昨日の夜、列車は二十分遅れたが、駅では誰も驚かなかった。運転士の話によると、線路の上に首に黄色いリボン"
    "を巻いた白鳥が座っていて、長いあいだ説得しなければならなかったそうだ。みんな笑ったが、彼は真剣だった。",
}
CHAINS = [
    *((lang, "utf-8", enc) for lang in ("fr", "de", "pl", "tr", "ru", "uk") for enc in ("latin-1", "cp1252", "cp1251", "cp1250", "mac_roman", "cp437")),
    *((lang, "utf-8", enc) for lang in ("zh", "ja") for enc in ("latin-1", "cp1252", "mac_roman")),
    *((lang, "utf-8", enc) for lang in ("fr", "pl", "ru") for enc in ("gbk", "shift_jis", "cp949")),
    ("ru", "koi8-r", "cp1251"), ("ru", "cp1251", "koi8-r"), ("ru", "cp1251", "latin-1"), ("ru", "cp866", "cp1251"),
    ("zh", "gbk", "latin-1"), ("zh", "gb2312", "latin-1"), ("ja", "euc-jp", "latin-1"), ("ja", "shift_jis", "cp1252"),
]  # fmt: skip


@pytest.mark.parametrize(("lang", "written", "read"), CHAINS)
def test_damage_is_seen_and_passes_the_screen(lang: str, written: str, read: str) -> None:
    text = (PROSE[lang] * 3).encode(written, "ignore").decode(read, "replace")
    damage = examine(text)
    assert len(damage) >= 20
    assert screen(DocumentBatch.from_texts([text]))["mojibake"].all()


@pytest.mark.parametrize("lang", PROSE)
def test_sound_text_is_sound(lang: str) -> None:
    assert len(examine(PROSE[lang] * 20)) < 6


@pytest.mark.parametrize(("lang", "read"), [("fr", "cp1252"), ("fr", "latin-1"), ("ru", "cp1251"), ("pl", "cp1250"), ("de", "mac_roman"), ("ru", "cp437")])
def test_the_chain_is_named(lang: str, read: str) -> None:
    chain = examine((PROSE[lang] * 3).encode().decode(read, "replace")).chain
    assert chain.startswith("UTF-8 read as") and (read in chain or read == "latin-1")


def test_reversible_damage_is_repaired() -> None:
    good = PROSE["ru"] * 2
    fixed = repair(good.encode().decode("mac_roman"))
    assert fixed is not None and fixed[0] == good
    assert repair(PROSE["fr"].encode().decode("latin-1")) == (PROSE["fr"], "UTF-8 read as latin-1")
    assert repair(PROSE["fr"]) is None


def test_double_encoding_lost_characters_and_question_marks() -> None:
    twice = (PROSE["fr"] * 2).encode().decode("latin-1").encode().decode("latin-1")
    assert len(examine(twice)) > 60
    assert len(examine((PROSE["fr"] * 3).encode().decode("ascii", "replace"))) > 60
    asked = "".join(c if c < "\x80" else "?" for c in PROSE["fr"] * 4)
    assert examine(asked).chain == "letters replaced by question marks" and len(examine(asked)) >= 20
    assert len(examine("What? Really? Yes. Is it there? No, why?\n" * 40)) == 0


def test_charts_of_character_sets_are_no_damage() -> None:
    rows = "".join(f"{c:03o}\t{c}\t{c:02X}\t{bytes([c]).decode('latin-1')}\tLATIN-1 {c}\n" for c in range(0xA0, 0x100))
    table = "CHARS = (\n" + "".join("    '" + "".join(chr(c) for c in range(a, a + 16)) + "'\n" for a in range(0x80, 0x100, 16)) + ")\n"
    config = read_thresholds()
    batch = DocumentBatch.from_texts([rows, table, "ISO 8859-1 " + rows])
    assert not [r for r in flag(measure(batch, config), config).to_pylist() if r["garbage"]]


@pytest.mark.parametrize("lang", PROSE)
def test_the_screen_sees_what_ftfy_sees(lang: str) -> None:
    r = random.Random(5)
    sound, damaged = [], []
    for _ in range(40):
        text = "".join(r.sample(list(PROSE.values()), 1)[0] if r.random() < 0.1 else PROSE[lang] for _ in range(3))
        cut = r.randrange(len(text) // 2)
        sound.append(text[cut:])
        for read in ("latin-1", "cp1252", "cp1251", "cp1250", "mac_roman", "cp437", "cp1254", "cp1257"):
            bad = text[cut : cut + 400].encode().decode(read, "replace")
            if is_bad(bad):
                damaged.append(text[:cut] + bad + text[cut + 400 :])
    seen = screen(DocumentBatch.from_texts(damaged))["mojibake"] if damaged else np.ones(1)
    assert seen.mean() >= 0.98
    assert screen(DocumentBatch.from_texts(sound))["mojibake"].mean() <= 0.05


def test_shipped_pairs_are_those_of_the_installed_ftfy() -> None:
    data = pairs.table()
    characters = [chr(c) for c in data["characters"].tolist()]
    n = len(characters)
    bad = np.unpackbits(np.asarray(data["bad"], np.uint8), count=n * n).reshape(n, n)
    r = random.Random(11)
    agree = [bool(bad[i, j]) == pairs.is_pair(characters[i], characters[j]) for i, j in ((r.randrange(n), r.randrange(n)) for _ in range(1500))]
    if ftfy.__version__ == str(data["ftfy"]):
        assert all(agree)
    assert np.mean(agree) > 0.98
