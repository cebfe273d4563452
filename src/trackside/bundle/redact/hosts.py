"""Redacts host names, also in Slurm's host lists: the stem gets a pseudonym, the number is kept.

``gpu[001-004,007]`` becomes ``node-a[001-004,007]``: lists stay lists, and nodes keep their order. Stems get letters in
alphabetical order. Domains of hosts are replaced as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from trackside.bundle.redact.kind import WORD_END, WORD_START, LeakPattern, NameKind, word
from trackside.bundle.redact.literal import any_of
from trackside.bundle.redact.prefilter import Detector, LinePattern, detector, literal
from trackside.catalog.hostlist import expand

MAX_HOSTS = 200_000
"""Maximum number of hosts of one bundle."""
MIN_CASELESS_LENGTH = 5
"""Names shorter than this are replaced only in the spelling in which they were found."""
_VALUE = r"[\"']?[ \t]?[=:][ \t]?[\"']?((?:[A-Za-z0-9._-]|\[[\d, \t-]*\]|,(?=[A-Za-z]))+)"
_LABELED = re.compile(
    r"(?:\b(?:NodeName|NodeHostName|NodeAddr|BatchHost|AllocNode(?::Sid)?|ReqNodeList|ExcNodeList|NodeList|[Hh]ost[Nn]ame"
    r"|HOSTNAME|SLURMD_NODENAME|SLURM(?:_JOB)?(?:_STEP)?_NODELIST|SLURM_SUBMIT_HOST|SLURM_LAUNCH_NODE_IPADDR|nodename"
    r"|host_name|node_name|node_list|master_addr|MASTER_ADDR|rdzv_endpoint|master_host|SlurmctldHost|AccountingStorageHost"
    r"|SubmitHost|batch_host|alloc_node|allocating_node|_HOSTNAME|submit_host|kubernetes_node|exported_instance)"
    rf"|[\"'](?:nodes?|host|instance)[\"']|[{{,](?:node|instance|host)(?==\")){_VALUE}",
    re.ASCII,
)
_CONTEXTS = (
    (
        re.compile(r"^(?:\S{1,40} ){0,3}([A-Za-z0-9][\w.-]*):\d+:\d+ \[\d+\] NCCL ", re.MULTILINE | re.ASCII),
        rb":[0-9]+:[0-9]+ \[[0-9]+\] NCCL ",
    ),
    (
        re.compile(
            r"^(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.,+Z-]+) ([A-Za-z0-9][\w.-]*) "
            r"(?:kernel|systemd|slurmd|slurmctld|slurmstepd|sshd|sudo|nvidia-\w+|CRON|[\w./-]+\[\d+\]):",
            re.MULTILINE | re.ASCII,
        ),
        b"",
    ),
    (
        re.compile(
            r"\b(?:srun|slurmstepd|mpirun|pdsh): (?:error: )?([A-Za-z0-9][\w.\[\],-]*): (?:tasks? |error)", re.ASCII
        ),
        b"",
    ),
    (re.compile(r"\*\*\* (?:JOB|STEP) \S{1,40} ON ([A-Za-z0-9][\w.-]*) CANCELLED", re.ASCII), b""),
    (
        re.compile(r"^[ \t]*host[ \t]*:[ \t]*([A-Za-z0-9][\w.-]*)\s*$", re.MULTILINE | re.ASCII),
        rb"host[ \t]*:[ \t]*[A-Za-z0-9]",
    ),
    (re.compile(r"^\[([A-Za-z0-9][\w.-]*):\d+\] \*\*\* ", re.MULTILINE | re.ASCII), rb":[0-9]+\] \*\*\* "),
    (re.compile(r"(?<=\w)@(?![\w-]+\.[a-z]{2,3}\b(?!\.))([A-Za-z0-9][\w.-]*)(?=[:\s~$#\])])", re.ASCII), b""),
    (
        re.compile(
            # The host part of a bucket URL is the bucket.
            r"(?<!\bs3)(?<!\bs3[an])(?<!\bgs)(?<!\bgcs)(?<!\baz)(?<!\babfs)(?<!\babfss)(?<!\bwasbs)(?<!\bfile)"
            r"://(?:[^/\s@\"']{1,200}@|(?![^/\s@\"']{1,200}@))"
            r"([A-Za-z0-9-]+|(?:[A-Za-z0-9-]+\.){1,5}(?:internal|local|lan|corp|intra|intranet|cluster))(?=[:/\s\"']|$)"
        ),
        rb"://",
    ),
    (re.compile(r"(?<![\w.-])(ip-\d{1,3}(?:-\d{1,3}){3}(?:\.[a-z0-9-]{1,40}){0,4})(?![\w-])"), rb"ip-[0-9]{1,3}-[0-9]"),
    (
        re.compile(
            r"\b(?:connect(?:ed|ing)?|connection|login) (?:to|from) (?:host )?([A-Za-z0-9][\w.-]*)"
            r"(?= port \d|:\d{2,5}\b)"
        ),
        b"",
    ),
    (re.compile(r"[Cc]ould not resolve host(?:name)?:? ([A-Za-z0-9][\w.-]*)"), b""),
    (
        re.compile(r"\baddress(?:es)? (?:of|for) [(\[][\"']?([A-Za-z0-9][\w.-]*)[\"']?, ?\d{2,5}[)\]]"),
        b"",
    ),
    (re.compile(r"://[^/\s\"'<>]{1,300}@([A-Za-z][\w-]*(?:\.[\w-]+)+)", re.ASCII), rb"://[^/\s\"'<>]{1,300}@"),
    (
        re.compile(
            r"\b(?:[A-Z][A-Z0-9_]*_)?(?:PROXY|URL|URI|ENDPOINT|HOST|proxy)=[\"']?(?:[a-z]{2,9}://)?([A-Za-z][\w-]*(?:\.[\w-]+){1,5})"
            r"(?=[:/\s\"']|$)",
            re.ASCII,
        ),
        rb"(?:PROXY|URL|URI|ENDPOINT|HOST|proxy)=",
    ),
)
"""Contexts of host names, and the prefilter pattern of each, if not derived from it."""
_SPELLED = ("NodeList=", "NodeName=", "BatchHost=", 'Hostname="', 'node="', '"node":"', '"node": "', '"hostname":"')
"""Some of these contexts as plain text, to search for missed names."""
_PLACEHOLDERS = frozenset(
    """
all any assigned auto batch client cluster compute cpu cuda debug default dist distributed env error extern false file
gpu gpus host hostname hosts http https info job jobs kernel localdomain localhost localnode login main master n/a nan
nccl node nodes none null python python3 rank ranks root server static task tasks tcp torch total train true unknown
user warning worker workers
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Words that occur in the place of a host name."""
_COMMON = frozenset(
    """
b c cn cpu cuda dl epoch g gpu h host layer n node p r rank s stage step t task v w worker x
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Stems whose numbered words are usually not hosts; of these only known hosts are replaced."""
_TOP = frozenset(
    """
ai at au be br ca ch cloud cluster cn com corp de dk edu es eu fi fr gov hpc in int internal intra intranet io it jp
kr lan local localdomain mil net nl no org priv se sg uk us
""".split()  # noqa: SIM905 - a list of words is read as one
)
_QUALIFIED = re.compile(
    r"(?<![\w.@-])([A-Za-z][A-Za-z0-9-]{1,62})\.((?:[A-Za-z][A-Za-z0-9-]{0,62}\.){1,4}[A-Za-z]{2,11})(?![\w-]|\.\w)"
)
_QUALIFIED_LINE_PATTERN = rb"[a-z0-9-]\.(?:" + "|".join(sorted(_TOP)).encode() + rb")(?:[^a-z0-9_-]|$)"
_NO_SCOPE = WORD_END + "(?!::)"
"""A word before two colons is a C++ name."""
FILES = frozenset(
    """
bin bz cfg conf core cpp csv cu dmp dump err gz html ini json jsonl kern log md npy npz out parquet pdf pickle pkl png
prom pt pth py safetensors sh so sqlite stderr stdout svg tar tfevents tgz toml trace tsv txt xml xz yaml yml zip zst
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Suffixes of file names."""
_NOT_HOSTS = frozenset({"localhost", "localdomain", "none", "null", "unknown", "n/a", "nan", "all", "any", "assigned"})
"""Words that records contain instead of a host name."""
_PUBLIC = re.compile(
    r"(?i)(?:^|\.)(?:github|gitlab|bitbucket|huggingface|hf|wandb|comet|neptune|pypi|pythonhosted|pytorch|nvidia|docker"
    r"|googleapis|google|amazonaws|windows|azure|clear|sentry|anaconda|ghcr|quay|gcr|openai|anthropic|slack|example)"
    r"\.(?:com|org|co|ai|ml|io|net)$"
)
"""Hosts of public services."""
_FLAGS = re.IGNORECASE | re.ASCII
_QUALIFIED_NAME = re.compile(
    r"(?<![A-Za-z0-9_.-])([A-Za-z0-9][A-Za-z0-9-]{1,62})\.((?:[A-Za-z][A-Za-z0-9-]{0,62}\.){1,4}[A-Za-z]{2,15})(?![\w.-])",
    re.ASCII,
)
MAX_PATTERN_CHARS = 8000
"""Longest list of names in one pattern, characters; Hyperscan's limit is 16,000."""
_VALID_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")


class Hosts(NameKind):
    """Host names, learned from records, events and series, and from text in contexts of host names."""

    plural = "host names"

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()
        self._spellings: set[str] = set()
        self._domains: set[str] = set()
        self._word_hosts: set[str] = set()
        """Hosts named like common words: replaced only in contexts of host names."""
        self._qualified: set[tuple[str, str]] = set()
        """(name, domain) pairs; the domains count only if the name is that of a host."""
        self._stems: dict[str, str] = {}
        self._words: dict[str, str] = {}
        """Host named like a common word -> pseudonym."""
        self._widths: set[tuple[str, int]] = set()
        self._names: dict[str, str] = {}
        self._domain_names: dict[str, str] = {}
        self._host_pattern: re.Pattern[str] | None = None
        self._domain_pattern: re.Pattern[str] | None = None

    @property
    def detectors(self) -> Sequence[Detector]:
        return (
            detector(_LABELED, self.add),
            *(detector(pattern, self.add, line_pattern) for pattern, line_pattern in _CONTEXTS),
            detector(_QUALIFIED, self._add_qualified, _QUALIFIED_LINE_PATTERN, caseless=True),
            *(
                detector(pattern, self._add_known_domain, line_pattern, caseless=True)
                for pattern, line_pattern in self._known_host_patterns()
            ),
        )

    def _known_host_patterns(self) -> Iterator[tuple[re.Pattern[str], bytes]]:
        """Yield the pattern for known hosts with any domain, and its prefilter pattern."""
        words = "|".join(sorted({re.escape(_split(name)[0]) for name in self._known}))
        if words:
            if len(words) > MAX_PATTERN_CHARS:
                words = "[a-z]"
            yield _QUALIFIED_NAME, rf"(?:{words})[0-9]*\.[a-z][a-z0-9-]*\.[a-z]".encode()

    def _add_known_domain(self, match: tuple[str, str]) -> None:
        short, domain = match
        if short.lower() in self._known and domain.rpartition(".")[2].lower() not in FILES:
            self._domains.add(domain.lower())

    def _add_qualified(self, match: tuple[str, str]) -> None:
        short, domain = match
        if domain.rpartition(".")[2].lower() in _TOP and len(self._qualified) < MAX_HOSTS:
            self._qualified.add((short.lower(), domain.lower()))

    def add(self, text: str, sure: bool = False) -> None:
        """Learn a host or a host list. ``sure``: it is from a record, so unusual names are accepted."""
        if not sure and _PUBLIC.search(text):
            return
        for name in expand(text.strip(",.-"), MAX_HOSTS - len(self._known)):
            short, _, domain = name.partition(".")
            if not _VALID_NAME.fullmatch(short) or len(short) < 2 or not any(letter.isalpha() for letter in short):
                continue
            if short.lower() in _PLACEHOLDERS:
                if sure and short.lower() not in _NOT_HOSTS:
                    self._word_hosts.add(short.lower())
                continue
            if not sure and _is_unlikely_host(name):
                continue
            top_level = domain.rpartition(".")[2].lower()
            has_site_domain = "." in domain and (top_level in _TOP or (sure and top_level.isalpha()))
            if sure and domain and not has_site_domain and top_level not in _TOP and top_level.isalpha():
                has_site_domain = True  # ``gpu1.acme``: the top level is a company name, unlike in ``gpu1.cluster``
            if has_site_domain:
                self._domains.add(domain.lower())
            # ``git.site.internal`` is a service: without its domain, its name is a common word.
            if sure or not has_site_domain or any(letter.isdigit() for letter in short):
                self._known.add(short.lower())
                self._spellings.add(short)

    def assign_pseudonyms(self) -> None:
        self._domains |= {domain for short, domain in self._qualified if short in self._known}
        stems = sorted({_split(name)[0] for name in self._known})
        size = 1
        while 26**size < 2 * (len(stems) + len(self._word_hosts)) + 2:
            size += 1
        number = 0
        for stem in stems:
            while (name := f"node-{_letters(number, size)}") in self._known or name in stems:
                number += 1
            self._stems[stem] = name
            number += 1
        self._words = {
            word: f"node-{_letters(number + number_, size)}" for number_, word in enumerate(sorted(self._word_hosts))
        }
        self._names = {name: self._stems[(parts := _split(name))[0]] + parts[1] for name in sorted(self._known)}
        self._widths = {(parts[0], len(parts[1])) for name in self._known if len((parts := _split(name))[1]) >= 3}
        words = "|".join(re.escape(stem) for stem in sorted(stems, key=lambda key: (-len(key), key)))
        if words:
            first = re.escape("".join(sorted({stem[0] for stem in stems})))
            self._host_pattern = re.compile(
                rf"(?=[{first}]){WORD_START}({words})(\d+|\[[\d, \t-]+\])?{WORD_END}(?!::)", _FLAGS
            )
        self._domain_names = {key: f"domain-{number_}.example" for number_, key in enumerate(sorted(self._domains), 1)}
        self.pseudonyms = {**self._names, **self._words, **self._domain_names}
        self._domain_pattern = any_of(self._domains, "(?<![A-Za-z0-9-])", "(?![A-Za-z0-9-])", _FLAGS)

    def redact(self, text: str) -> str:
        if self._word_hosts:
            for pattern, _ in ((_LABELED, b""), *_CONTEXTS):
                text = pattern.sub(self._replace_words, text)
        if self._domain_pattern is not None:
            text = self._domain_pattern.sub(lambda match: self._domain_names[match[0].lower()], text)
        return text if self._host_pattern is None else self._host_pattern.sub(self._replace_host, text)

    def _replace_words(self, match: re.Match[str]) -> str:
        """Replace words in a context of host names."""
        begin, end = match.start(1) - match.start(), match.end(1) - match.start()
        replaced_text = re.sub(
            r"[A-Za-z0-9_-]+", lambda word: self._words.get(word[0].lower(), word[0]), match[1] or ""
        )
        return match[0][:begin] + replaced_text + match[0][end:] if begin >= 0 else match[0]

    def _replace_host(self, match: re.Match[str]) -> str:
        stem, suffix = match[1].lower(), match[2] or ""
        return self._stems[stem] + suffix if self._is_host(match) else match[0]

    def _is_host(self, match: re.Match[str]) -> bool:
        """Whether a match is a known host, or another host with an uncommon stem."""
        stem, suffix = match[1].lower(), match[2] or ""
        if len(match[0]) < MIN_CASELESS_LENGTH and "[" not in suffix:  # ``g1`` is a host, ``G1`` a family code
            return match[0] in self._spellings
        if suffix.startswith("["):
            hosts = expand(stem + suffix.replace(" ", ""), 4096)
            return any(host in self._known for host in hosts) or (len(stem) >= 3 and stem not in _COMMON)
        if stem + suffix in self._known:
            return True
        return bool(suffix) and (
            (len(stem) >= 4 and stem.rstrip("-_") not in _COMMON) or (stem, len(suffix)) in self._widths
        )

    def line_patterns(self) -> Iterable[LinePattern]:
        for word_host in self._words:
            yield literal(word_host, caseless=True)
        for domain in self._domain_names:
            yield literal(domain, caseless=True)
        for stem in self._stems:
            # A stem without a number is a host only if it is a full host name.
            yield word(stem, b"" if stem in self._known else b"[0-9\\[]", caseless=True)

    def leak_patterns(self) -> Iterable[LeakPattern]:
        """Leak patterns of all names; long names with a number also within longer words."""
        for host, pseudonym in self._names.items():
            stem, number = _split(host)
            if len(host) < MIN_CASELESS_LENGTH:
                for spelling in sorted(spelling_ for spelling_ in self._spellings if spelling_.lower() == host):
                    yield LeakPattern(spelling, pseudonym, after=_NO_SCOPE, exact=True)
            elif number and len(stem) >= 4 and stem not in _COMMON:
                yield LeakPattern(host, pseudonym, "", r"(?!\d|::)")
            else:
                yield LeakPattern(host, pseudonym, after=_NO_SCOPE)
        for word_host, pseudonym in self._words.items():
            for context in _SPELLED:
                yield LeakPattern(context + word_host, pseudonym, "", r"(?![\w-])")
        for domain, pseudonym in self._domain_names.items():
            yield LeakPattern(domain, pseudonym, r"(?<![A-Za-z0-9-])", r"(?![A-Za-z0-9-])")


def _split(name: str) -> tuple[str, str]:
    """Stem and trailing number of a host name; the number may be empty."""
    number = re.search(r"\d*\Z", name)
    begin = number.start() if number is not None else len(name)
    return (name[:begin], name[begin:]) if begin else (name, "")


def _letters(number: int, size: int) -> str:
    """The n-th word of ``size`` letters."""
    word = ""
    for _ in range(size):
        number, letter = divmod(number, 26)
        word = chr(ord("a") + letter) + word
    return word


def _is_unlikely_host(full: str) -> bool:
    """Whether a name is more likely a file, a version, an address or a word."""
    if re.fullmatch(r"[\d._:-]+|0x[0-9A-Fa-f]*|v?\d+(?:[._-]\w+)*", full) or re.search(
        r"\.(?:py|sh|log|out|err|txt|json|gz|so|pt|cpp|cu|h|yaml|toml)(?:\.|\Z)", full
    ):
        return True
    return full.islower() and full.isalpha() and len(full) < 4
