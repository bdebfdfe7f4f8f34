"""Texts for messages and pictures: of limited length, with counted nouns, with masked secrets."""

import re


def shortened(text: str, most: int = 200) -> str:
    """`text` of at most `most` characters; the end of a longer text is replaced by an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 row", "2,000 rows"; `plural`: where an s is not enough."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


# Masks likely secrets in texts of reports and logs.
#
# Losing a text that only resembles a secret is the lesser harm.

MASK = "******"
MOST_MASKED = 16_000  # characters masked as a whole: some patterns take quadratic time
_NAMED = (
    r"(?:[\w.-]{0,60}(?:password|passwd|passphrase|passcode|pwd|secret|token|credential|signature|cookie|jaas|"
    r"(?:api|access|account|private|shared|storage|signing|encryption|master|license|ssh)[_-]?key|"
    r"connection[_-]?string|(?<![a-z])pass(?![a-z])|(?<![a-z])auth(?![a-z])|(?<![a-z])sig(?![a-z]))[\w.-]{0,60})"
)
# A quoted value may be cut off by the end of the text.
_QUOTED = (
    r"""(?:[bruf]{0,2}(?:"(?:\\.|[^"\\\n])*(?:"|\\?\Z)|'(?:\\.|[^'\\\n])*(?:'|\\?\Z))|\\+"[^"\n]*"|\\+'[^'\n]*')"""
)
_NAME = re.compile(_NAMED, re.IGNORECASE)
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), MASK),
    # user:password@host of a URL, even if the password has a slash or an @; then without a scheme
    (re.compile(r"(?<=://)(?:[^/\s'\"<>]+|[^/\s'\"<>@:]+:[^\s'\"<>]+)@"), f"{MASK}@"),
    (re.compile(r"(?<![\w/.:-])([\w.+-]+):[^\s:/@'\"<>(){}\[\]]+@(?=[\w(\[])"), rf"\1:{MASK}@"),
    # Headers: the whole value. An `Authorization` may have several words, and several parameters.
    (
        re.compile(r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\\*['\"]?\s*[=:]\s*\\*['\"]?)[^'\"\n\\]+"),
        rf"\1\2{MASK}",
    ),
    # password=…, "secret_key": "…", token: …, ("password", "…"), <password>…</password>
    (
        re.compile(rf"(?i)(?<![\w.-])({_NAMED})(\\*['\"]?\s*(?:=>|[=:])\s*)({_QUOTED}|[^\s,;&'\"<>)\]}}]+)"),
        rf"\1\2{MASK}",
    ),
    (re.compile(rf"(?i)(['\"]{_NAMED}['\"]\s*,\s*){_QUOTED}"), rf"\1{MASK}"),
    (re.compile(rf"(?i)(<{_NAMED}>)[^<\n]+"), rf"\1{MASK}"),
    # --password …, -u user:…, of a command line (a file's name is no secret); IDENTIFIED BY '…' of SQL
    (re.compile(rf"(?i)(?<!\S)(--?(?!\S*-file\b){_NAMED})(\s+)({_QUOTED}|[^\s'\"]+)"), rf"\1\2{MASK}"),
    (re.compile(r"(?<!\S)(-u|--user)(\s+|=)[^\s:'\"]+:[^\s'\"]+"), rf"\1\2{MASK}"),
    (re.compile(rf"(?i)\b(password|identified\s+(?:with\s+\w+\s+)?by)(\s+){_QUOTED}"), rf"\1\2{MASK}"),
    (re.compile(r"(?i)\b(\w*secret_?access_?key)(\s+)[\w/+=]{16,}"), rf"\1\2{MASK}"),
    (re.compile(r"(?i)\b(bearer|basic|sharedkey)\s+[\w.~+/=:-]{8,}"), rf"\1 {MASK}"),
    # Known by their form: of AWS, GitHub, GitLab, Slack, Google, Stripe and others; a JSON web token
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AIza|ya29\.|[sr]k_live_|sk-)[\w.-]{16,}"), MASK),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), MASK),
    (re.compile(r"\b[0-9a-fA-F]{64,}\b"), MASK),  # a token of this project, or a useless digest
)


def masked_text(text: str) -> str:
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def names_a_secret(name: str) -> bool:
    return _NAME.fullmatch(name[:200]) is not None


def masked_within(text: str, most: int) -> str:
    """Masks, then cuts the middle out above `most` characters.

    A cut before the masking would leave the rest of a secret, which looks harmless. Above `MOST_MASKED` characters only
    both ends are masked: the second from the beginning of a line on, and after any private key.
    """
    if len(text) <= MOST_MASKED:
        first = last = masked_text(text)
        if len(first) <= most:
            return first
    else:
        first = masked_text(text[: MOST_MASKED // 2])
        lines = text[-MOST_MASKED // 2 :].partition("\n")[2]
        last = masked_text(lines.rpartition("PRIVATE KEY-----")[2])
    return both_ends(first, last, len(text), most)


def both_ends(first: str, last: str, length: int, most: int) -> str:
    """Cuts out the middle. `first` and `last`: ends of a text of `length` characters."""
    half = most // 2
    return f"{first[:half]}\n… ({length - 2 * half:,} characters are left out) …\n{last[-half:]}"
