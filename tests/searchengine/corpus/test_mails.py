"""Emails: all that a reader sees is read, in its order."""

from email import message_from_bytes
from email.message import EmailMessage, Message
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path

import pytest

from searchengine.corpus.documents import Document
from searchengine.corpus.files import read_corpus

FOOTER = "_______\nclub mailing list"
PLAIN = "We rent the boathouse."
HTML = "<p>We rent the <b>boathouse</b>.</p>"


def read(tmp_path: Path, message: Message | bytes) -> Document:
    """The document that an email becomes."""
    content = message if isinstance(message, bytes) else message.as_bytes()
    (tmp_path / "a.eml").write_bytes(content)
    (document,) = read_corpus(tmp_path)
    return document


def mail(kind: str, *parts: Message) -> MIMEMultipart:
    message = MIMEMultipart(kind)
    message["Subject"], message["From"] = "Minutes", "ana@example.org"
    for part in parts:
        message.attach(part)
    return message


def plain(text: str) -> MIMEText:
    return MIMEText(text, "plain", "utf-8")


def html(text: str) -> MIMEText:
    return MIMEText(text, "html", "utf-8")


def inner(kind: str, *parts: Message) -> MIMEMultipart:
    message = MIMEMultipart(kind)
    for part in parts:
        message.attach(part)
    return message


def file(name: str, disposition: str = "attachment", kind: str = "image/png") -> Message:
    return message_from_bytes(
        f'Content-Type: {kind}\nContent-Disposition: {disposition}; filename="{name}"\n\nx'.encode()
    )


def forwarded() -> MIMEMessage:
    message = EmailMessage()
    message["Subject"] = "Old news"
    message.set_content("The roof leaks.")
    message.add_attachment(b"x", maintype="image", subtype="png", filename="leak.png")
    return MIMEMessage(message)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (mail("mixed", html(HTML), plain(FOOTER)), f"{PLAIN}\n\n{FOOTER}"),
        (
            mail("mixed", plain("first:"), file("roof.png", "inline"), plain("a cat")),
            "first:\n\na cat"),
        (mail("alternative", plain(PLAIN), html("<p>other")), PLAIN),
        (mail("alternative", plain(" \n"), html(HTML)), PLAIN),
        (mail("alternative", MIMEText("**a**", "markdown"), html(HTML)), PLAIN),
        (
            mail("alternative", plain(""), inner("related", html(HTML), file("x.png", "inline"))),
            PLAIN),
        (mail("related", html(HTML), file("a.pdf")), PLAIN),
        (mail("mixed", plain("See."), forwarded()), "See.\n\nOld news\n\nThe roof leaks."),
        (mail("mixed", plain(PLAIN), file("notes.txt", kind="text/plain")), PLAIN),
        (mail("mixed", plain(PLAIN), file("in.txt", "inline", "text/plain")), f"{PLAIN}\n\nx"),
        (mail("signed", plain(PLAIN), file("s.asc", kind="application/pgp-signature")), PLAIN),
        (mail("mixed", file("invoice.csv", kind="text/csv")), ""),
    ],
)  # fmt: skip
def test_what_a_reader_sees(tmp_path: Path, message: Message, text: str) -> None:
    document = read(tmp_path, message)
    assert (document.title, document.text) == ("Minutes", text)


@pytest.mark.parametrize(
    ("content", "title", "text"),
    [
        ("Subject: Grüße\n\nSchöne Grüße".encode(), "Grüße", "Schöne Grüße"),
        (b"Subject: x\nDate: no date\nTo: <<\n\nsea", "x", "sea"),
        (b"Subject: x\nContent-Type: text/plain; charset=nowhere\n\nsea", "x", "sea"),
        (b"Subject: x\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nopen", "x", "open"),
        (b"Subject: =?iso-8859-1?Q?Gr=FC=DFe?=\n\nhi", "Grüße", "hi"),
    ],
)  # fmt: skip
def test_emails_that_break_the_rules(tmp_path: Path, content: bytes, title: str, text: str) -> None:
    document = read(tmp_path, content)
    assert (document.title, document.text) == (title, text)
