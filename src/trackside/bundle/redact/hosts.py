"""Host names, also in Slurm's lists of them: the stem gets another name, the number stays.

``gpu[001-004,007]`` becomes ``node-a[001-004,007]``: lists stay lists, and nodes stand in the same order. Stems are
lettered in their own order. Domains of hosts are replaced as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from trackside.bundle.redact.kind import AFTER, BEFORE, Kind, Trace, word
from trackside.bundle.redact.literal import any_of
from trackside.bundle.redact.sieve import Look, Sign, literal, look
from trackside.catalog.hostlist import expand

MOST = 200_000
"""Hosts of one bundle."""
SHORT = 5
"""Names shorter than this are hosts only in the spelling that was met."""
_VALUE = r"[\"']?[ \t]?[=:][ \t]?[\"']?((?:[A-Za-z0-9._-]|\[[\d, \t-]*\]|,(?=[A-Za-z]))+)"
_SAYS = re.compile(
    r"(?:\b(?:NodeName|NodeHostName|NodeAddr|BatchHost|AllocNode(?::Sid)?|ReqNodeList|ExcNodeList|NodeList|[Hh]ost[Nn]ame"
    r"|HOSTNAME|SLURMD_NODENAME|SLURM(?:_JOB)?(?:_STEP)?_NODELIST|SLURM_SUBMIT_HOST|SLURM_LAUNCH_NODE_IPADDR|nodename"
    r"|host_name|node_name|node_list|master_addr|MASTER_ADDR|rdzv_endpoint|master_host|SlurmctldHost|AccountingStorageHost"
    r"|SubmitHost|batch_host|alloc_node|allocating_node|_HOSTNAME|submit_host|kubernetes_node|exported_instance)"
    rf"|[\"'](?:nodes?|host|instance)[\"']|[{{,](?:node|instance|host)(?==\")){_VALUE}",
    re.ASCII,
)
_STANDS = (
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
            # What a bucket's URL names is no host.
            r"(?<!\bs3)(?<!\bs3[an])(?<!\bgs)(?<!\bgcs)(?<!\baz)(?<!\babfs)(?<!\babfss)(?<!\bwasbs)(?<!\bfile)"
            r"://(?:[^/\s@\"']{1,200}@|(?![^/\s@\"']{1,200}@))"
            r"([A-Za-z0-9-]+|(?:[A-Za-z0-9-]+\.){1,5}(?:internal|local|lan|corp|intra|intranet|cluster))(?=[:/\s\"']|$)"
        ),
        rb"://",
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
"""What a host's name stands in, and the sign of it where it has one of its own."""
_SPELLED = ("NodeList=", "NodeName=", "BatchHost=", 'Hostname="', 'node="', '"node":"', '"node": "', '"hostname":"')
"""Some such places as texts, to look for what was overlooked."""
_NONE = frozenset(
    """
all any assigned auto batch client cluster compute cpu cuda debug default dist distributed env error extern false file
gpu gpus host hostname hosts http https info job jobs kernel localdomain localhost localnode login main master n/a nan
nccl node nodes none null python python3 rank ranks root server static task tasks tcp torch total train true unknown
user warning worker workers
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Words that stand where a host's name may stand."""
_COMMON = frozenset(
    """
b c cn cpu cuda dl epoch g gpu h host layer n node p r rank s stage step t task v w worker x
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Stems whose numbered words are more often something else: of these only hosts that are known are replaced."""
_TOP = frozenset(
    """
ai at au be br ca ch cloud cluster cn com corp de dk edu es eu fi fr gov hpc in int internal intra intranet io it jp
kr lan local localdomain mil net nl no org priv se sg uk us
""".split()  # noqa: SIM905 - a list of words is read as one
)
_FULLY = re.compile(
    r"(?<![\w.@-])([A-Za-z][A-Za-z0-9-]{1,62})\.((?:[A-Za-z][A-Za-z0-9-]{0,62}\.){1,4}[A-Za-z]{2,11})(?![\w-]|\.\w)"
)
_FULLY_SIGN = rb"[a-z0-9-]\.(?:" + "|".join(sorted(_TOP)).encode() + rb")(?:[^a-z0-9_-]|$)"
_NO_SCOPE = AFTER + "(?!::)"
"""A word before two colons is a name in C++."""
FILES = frozenset(
    """
bin bz cfg conf core cpp csv cu dmp dump err gz html ini json jsonl kern log md npy npz out parquet pdf pickle pkl png
prom pt pth py safetensors sh so sqlite stderr stdout svg tar tfevents tgz toml trace tsv txt xml xz yaml yml zip zst
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""What names of files end in."""
_NOBODY = frozenset({"localhost", "localdomain", "none", "null", "unknown", "n/a", "nan", "all", "any", "assigned"})
"""Names that no host has, though records write them."""
_PUBLIC = re.compile(
    r"(?i)(?:^|\.)(?:github|gitlab|bitbucket|huggingface|hf|wandb|comet|neptune|pypi|pythonhosted|pytorch|nvidia|docker"
    r"|googleapis|google|amazonaws|windows|azure|clear|sentry|anaconda|ghcr|quay|gcr|openai|anthropic|slack|example)"
    r"\.(?:com|org|co|ai|ml|io|net)$"
)
"""Hosts of services that everybody uses."""
_FLAGS = re.IGNORECASE | re.ASCII
_NAMED = re.compile(
    r"(?<![A-Za-z0-9_.-])([A-Za-z0-9][A-Za-z0-9-]{1,62})\.((?:[A-Za-z][A-Za-z0-9-]{0,62}\.){1,4}[A-Za-z]{2,15})(?![\w.-])",
    re.ASCII,
)
LONGEST_SIGN = 8000
"""Characters of the names that one sign is made of; Hyperscan takes 16,000."""
_FULL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?")


class Hosts(Kind):
    """Machines, by what records, events and curves say of them and by what stands where names of hosts stand."""

    name = "host names"

    def __init__(self) -> None:
        super().__init__()
        self._known: set[str] = set()
        self._spelled: set[str] = set()
        self._domains: set[str] = set()
        self._placed: set[str] = set()
        """Hosts that are called like words: they are replaced only where a host's name stands."""
        self._full: set[tuple[str, str]] = set()
        """Words that are names with their domains, if the names are those of hosts."""
        self._stems: dict[str, str] = {}
        self._words: dict[str, str] = {}
        """Hosts that are called like words -> their names."""
        self._widths: set[tuple[str, int]] = set()
        self._names: dict[str, str] = {}
        self._domain_names: dict[str, str] = {}
        self._any: re.Pattern[str] | None = None
        self._any_domain: re.Pattern[str] | None = None

    @property
    def looks(self) -> Sequence[Look]:
        return (
            look(_SAYS, self.add),
            *(look(pattern, self.add, sign) for pattern, sign in _STANDS),
            look(_FULLY, self._fully, _FULLY_SIGN, caseless=True),
            *(look(pattern, self._of_known, sign, caseless=True) for pattern, sign in self._known_fully()),
        )

    def _known_fully(self) -> Iterator[tuple[re.Pattern[str], bytes]]:
        """With whatever domain, those that records and curves name."""
        words = "|".join(sorted({re.escape(_split(name)[0]) for name in self._known}))
        if words:
            if len(words) > LONGEST_SIGN:
                words = "[a-z]"
            yield _NAMED, rf"(?:{words})[0-9]*\.[a-z][a-z0-9-]*\.[a-z]".encode()

    def _of_known(self, found: tuple[str, str]) -> None:
        short, domain = found
        if short.lower() in self._known and domain.rpartition(".")[2].lower() not in FILES:
            self._domains.add(domain.lower())

    def _fully(self, found: tuple[str, str]) -> None:
        short, domain = found
        if domain.rpartition(".")[2].lower() in _TOP and len(self._full) < MOST:
            self._full.add((short.lower(), domain.lower()))

    def add(self, text: str, sure: bool = False) -> None:
        """A host, or a list of them. ``sure``: a record says so, however odd the name looks."""
        if not sure and _PUBLIC.search(text):
            return
        for full in expand(text.strip(",.-"), MOST - len(self._known)):
            short, _, domain = full.partition(".")
            if not _FULL.fullmatch(short) or len(short) < 2 or not any(letter.isalpha() for letter in short):
                continue
            if short.lower() in _NONE:
                if sure and short.lower() not in _NOBODY:
                    self._placed.add(short.lower())
                continue
            if not sure and _looks_otherwise(full):
                continue
            top = domain.rpartition(".")[2].lower()
            there = "." in domain and (top in _TOP or (sure and top.isalpha()))
            if sure and domain and not there and top not in _TOP and top.isalpha():
                there = True  # ``gpu1.acme``: a company's name, rather than ``gpu1.cluster``
            if there:
                self._domains.add(domain.lower())
            # ``git.site.internal`` is a service: without its domain it is a word of any log.
            if sure or not there or any(letter.isdigit() for letter in short):
                self._known.add(short.lower())
                self._spelled.add(short)

    def settle(self) -> None:
        self._domains |= {domain for short, domain in self._full if short in self._known}
        stems = sorted({_split(name)[0] for name in self._known})
        size = 1
        while 26**size < 2 * (len(stems) + len(self._placed)) + 2:
            size += 1
        number = 0
        for stem in stems:
            while (name := f"node-{_letters(number, size)}") in self._known or name in stems:
                number += 1
            self._stems[stem] = name
            number += 1
        self._words = {word: f"node-{_letters(number + n, size)}" for n, word in enumerate(sorted(self._placed))}
        self._names = {name: self._stems[(parts := _split(name))[0]] + parts[1] for name in sorted(self._known)}
        self._widths = {(parts[0], len(parts[1])) for name in self._known if len((parts := _split(name))[1]) >= 3}
        words = "|".join(re.escape(stem) for stem in sorted(stems, key=lambda each: (-len(each), each)))
        if words:
            first = re.escape("".join(sorted({stem[0] for stem in stems})))
            self._any = re.compile(rf"(?=[{first}]){BEFORE}({words})(\d+|\[[\d, \t-]+\])?{AFTER}(?!::)", _FLAGS)
        self._domain_names = {each: f"domain-{n}.example" for n, each in enumerate(sorted(self._domains), 1)}
        self.names = {**self._names, **self._words, **self._domain_names}
        self._any_domain = any_of(self._domains, "(?<![A-Za-z0-9-])", "(?![A-Za-z0-9-])", _FLAGS)

    def replaced(self, text: str) -> str:
        if self._placed:
            for pattern, _ in ((_SAYS, b""), *_STANDS):
                text = pattern.sub(self._in_place, text)
        if self._any_domain is not None:
            text = self._any_domain.sub(lambda match: self._domain_names[match[0].lower()], text)
        return text if self._any is None else self._any.sub(self._named, text)

    def _in_place(self, match: re.Match[str]) -> str:
        """What stands where a host's name does, its words replaced."""
        begin, end = match.start(1) - match.start(), match.end(1) - match.start()
        told = re.sub(r"[A-Za-z0-9_-]+", lambda word: self._words.get(word[0].lower(), word[0]), match[1] or "")
        return match[0][:begin] + told + match[0][end:] if begin >= 0 else match[0]

    def _named(self, match: re.Match[str]) -> str:
        stem, rest = match[1].lower(), match[2] or ""
        return self._stems[stem] + rest if self._is_host(match) else match[0]

    def _is_host(self, match: re.Match[str]) -> bool:
        """Whether it is a known one, or one more of a stem that is no common word."""
        stem, rest = match[1].lower(), match[2] or ""
        if len(match[0]) < SHORT and "[" not in rest:  # ``g1`` is a host, ``G1`` a family of faults
            return match[0] in self._spelled
        if rest.startswith("["):
            listed = expand(stem + rest.replace(" ", ""), 4096)
            return any(each in self._known for each in listed) or (len(stem) >= 3 and stem not in _COMMON)
        if stem + rest in self._known:
            return True
        return bool(rest) and (
            (len(stem) >= 4 and stem.rstrip("-_") not in _COMMON) or (stem, len(rest)) in self._widths
        )

    def signs(self) -> Iterable[Sign]:
        for placed in self._words:
            yield literal(placed, caseless=True)
        for domain in self._domain_names:
            yield literal(domain, caseless=True)
        for stem in self._stems:
            # Alone a stem is a host only where that is one's whole name.
            yield word(stem, b"" if stem in self._known else b"[0-9\\[]", caseless=True)

    def traces(self) -> Iterable[Trace]:
        """Long names with a number also within longer words."""
        for full, name in self._names.items():
            stem, number = _split(full)
            if len(full) < SHORT:
                for spelled in sorted(each for each in self._spelled if each.lower() == full):
                    yield Trace(spelled, name, after=_NO_SCOPE, exact=True)
            elif number and len(stem) >= 4 and stem not in _COMMON:
                yield Trace(full, name, "", r"(?!\d|::)")
            else:
                yield Trace(full, name, after=_NO_SCOPE)
        for placed, name in self._words.items():
            for place in _SPELLED:
                yield Trace(place + placed, name, "", r"(?![\w-])")
        for domain, name in self._domain_names.items():
            yield Trace(domain, name, r"(?<![A-Za-z0-9-])", r"(?![A-Za-z0-9-])")


def _split(name: str) -> tuple[str, str]:
    """Stem and number of a host's name; the number is empty where it ends otherwise."""
    number = re.search(r"\d*\Z", name)
    begin = number.start() if number is not None else len(name)
    return (name[:begin], name[begin:]) if begin else (name, "")


def _letters(number: int, size: int) -> str:
    """The n-th word of so many letters."""
    word = ""
    for _ in range(size):
        number, letter = divmod(number, 26)
        word = chr(ord("a") + letter) + word
    return word


def _looks_otherwise(full: str) -> bool:
    """Whether it is rather a file, a version, an address or a word."""
    if re.fullmatch(r"[\d._:-]+|0x[0-9A-Fa-f]*|v?\d+(?:[._-]\w+)*", full) or re.search(
        r"\.(?:py|sh|log|out|err|txt|json|gz|so|pt|cpp|cu|h|yaml|toml)(?:\.|\Z)", full
    ):
        return True
    return full.islower() and full.isalpha() and len(full) < 4
