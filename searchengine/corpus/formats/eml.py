"""Emails (.eml): the subject as title, and the text."""

from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from searchengine.corpus.formats.kinds import Text
from searchengine.corpus.formats.markup import parse
from searchengine.corpus.text_files import bad, decode, read_bytes

_FIELDS = {"author": "from", "to": "to", "cc": "cc"}
_ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")


def read_eml(path: Path) -> Iterator[Text]:
    """The text of an email, without its attachments, whose names are metadata.

    Of an email in plain text and HTML it is the plain text. Raises CorpusError.
    """
    message = message_from_bytes(read_bytes(path), policy=policy.default)
    assert isinstance(message, EmailMessage)
    if not any(name in message for name in ("from", "to", "subject", "date", "message-id")):
        raise bad(path, "not an email: it has neither From, To, Subject, Date nor Message-ID")
    if message.get_content_type() in _ENCRYPTED:
        if "signed" not in str(message.get_param("smime-type", "")):
            raise bad(path, "encrypted; save the email as it was decrypted")
    body = message.get_body(("plain", "html"))
    yield Text(_text(body, path), _header(message, "subject"), _metadata(message))


def _text(body: Any, path: Path) -> str:
    if body is None:
        return ""
    data = body.get_payload(decode=True)
    text, _ = decode(data or b"", path, body.get_content_charset() or "")
    if body.get_content_subtype() == "html":
        return parse(text).text
    return text.replace("\r\n", "\n").strip()


def _metadata(message: EmailMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {name: _header(message, of) for name, of in _FIELDS.items()}
    if (sent := getattr(message["date"], "datetime", None)) is not None:
        fields["date"] = sent.isoformat()
    names = (part.get_filename() for part in message.iter_attachments())
    fields["attachments"] = [_clean(name) for name in names if name]
    return {name: value for name, value in fields.items() if value}


def _header(message: EmailMessage, name: str) -> str:
    return _clean(str(message[name] or ""))


def _clean(text: str) -> str:
    """A header on one line; bytes that its encoding does not have are shown as U+FFFD."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return " ".join(text.replace("\0", "").split())
