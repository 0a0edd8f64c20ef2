import pytest

from forensics.text import excerpt, one_line, redact, visible


def test_control_characters_are_shown_not_sent() -> None:
    shown = visible("a\x1b[31mb\x00\u202eevil\ud800\u200b")
    assert "\x1b" not in shown and "\x00" not in shown and "\u202e" not in shown
    assert "⟨U+202E⟩" in shown and "␛" in shown and "⟨U+D800⟩" in shown
    shown.encode("utf-8")


@pytest.mark.parametrize("secret", ["jane.doe@mail.example.com", "+49 (030) 1234 5678", "sk-abcdefghijklmnop1234", "AKIAIOSFODNN7EXAMPLE99"])
def test_personal_data_are_masked(secret: str) -> None:
    masked, changed = redact(f"write to {secret} now")
    assert changed and secret not in masked


@pytest.mark.parametrize("plain", ["version 1.2.3 of 2024-01-02", "step 41200:41500 lr 3.0e-4", "a@b", "0.16.1"])
def test_numbers_and_dates_are_not(plain: str) -> None:
    assert redact(plain) == (plain, False)


def test_excerpts_are_bounded() -> None:
    assert len(excerpt("x" * 10**6, 400)) < 480
    assert one_line("a\nb", 10) == "a⏎b"
