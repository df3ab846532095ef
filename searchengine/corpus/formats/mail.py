"""Emails (.eml): the subject as title, and the text."""

import codecs
import re
from base64 import b64decode
from contextlib import suppress
from email import errors, message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from searchengine.corpus.contents import Parts, Text, bad, decode, read_bytes
from searchengine.corpus.formats.markup import parse
from searchengine.errors import CorpusError

_FIELDS = {"author": "from", "to": "to", "cc": "cc"}
_ENCRYPTED = ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime")
_SHOWN = ("text/plain", "text/html", "text/markdown")
# The parser reads no boundary with "=" in it that is not quoted, as Outlook writes them.
_BOUNDARY = re.compile(
    rb"^(content-type:[^\n]*(?:\n[ \t][^\n]*)*?\bboundary=)([^\s\";]+)",
    re.IGNORECASE | re.MULTILINE,
)
_DAMAGES = {
    errors.NoBoundaryInMultipartDefect: "the boundary between its parts is not named",
    errors.StartBoundaryNotFoundDefect: "the boundary between its parts does not occur",
    errors.InvalidBase64CharactersDefect: "a text has characters that are not base64",
    errors.InvalidBase64PaddingDefect: "a text in base64 is cut",
    errors.InvalidBase64LengthDefect: "a text in base64 is cut",
}


def read_eml(path: Path) -> Parts:
    """The text of an email, without its attachments.

    It is what a reader sees: all parts with text in their order, forwarded emails with their
    subjects, and of several forms of one text the plain one, unless it is blank. Raises
    CorpusError.
    """
    data = read_bytes(path).removeprefix(codecs.BOM_UTF8)
    message: Any = message_from_bytes(_BOUNDARY.sub(rb'\1"\2"', data), policy=policy.default)
    if not any(name in message for name in ("from", "to", "subject", "date", "message-id")):
        raise bad(path, "not an email: it has neither From, To, Subject, Date nor Message-ID")
    if message.get_content_type() in _ENCRYPTED:
        if "signed" not in str(message.get_param("smime-type", "")):
            raise bad(path, "encrypted; save the email as it was decrypted")
    lost: list[str] = []
    text = _text(message, path, lost)
    fields: dict[str, Any] = {n: _header(message, name, path) for n, name in _FIELDS.items()}
    sent = getattr(message["date"], "datetime", None)
    fields["date"] = sent and sent.isoformat()
    fields = {name: value for name, value in fields.items() if value}
    yield Text(text, _header(message, "subject", path), fields)
    yield from dict.fromkeys(lost)


def _text(part: Any, path: Path, lost: list[str]) -> str:
    """The text that a reader sees of a part; a sentence for each damage goes to `lost`."""
    kind, content = part.get_content_type(), b""
    if kind in _SHOWN and not part.is_attachment():
        content = part.get_payload(decode=True) or b""
    if errors.InvalidBase64LengthDefect in map(type, part.defects):  # it was not decoded
        content = b64decode("".join(part.get_payload().split())[:-1])
    lost += [what for defect in part.defects if (what := _DAMAGES.get(type(defect)))]
    if part.is_multipart():
        inner = [each for each in part.get_payload() if isinstance(each, EmailMessage)]
        if kind == "multipart/related":  # a page, and pictures in it
            inner = inner[:1]
        texts = [_text(each, path, lost) for each in inner]
        if kind == "multipart/alternative":
            forms = [(f.get_content_type(), t) for f, t in zip(inner, texts, strict=True) if t]
            plain = [t for form, t in forms if form == "text/plain" and any(map(str.isalnum, t))]
            texts = plain[:1] or [text for _, text in forms][-1:]
        elif kind == "message/rfc822":
            texts[:0] = [_header(each, "subject", path) for each in inner]
        return "\n\n".join(filter(None, texts))
    text, _, broken = decode(content, path, part.get_content_charset() or "")
    lost += broken
    return parse(text).text if kind == "text/html" else text.strip()


def _header(message: EmailMessage, name: str, path: Path) -> str:
    """A header on one line; letters beyond ASCII that are not encoded are read as a text's."""
    raw = next((str(value) for key, value in message.raw_items() if key.lower() == name), "")
    data = raw.encode("utf-8", "surrogateescape")
    if data.decode("utf-8", "replace") != raw and not raw.isascii():
        with suppress(CorpusError):
            return _clean(decode(data, path)[0])
    return _clean(str(message[name] or ""))


def _clean(text: str) -> str:
    """A header on one line; bytes that its encoding does not have are shown as U+FFFD."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return " ".join(text.replace("\0", "").split())
