"""Redacts users, accounts, clusters, and words given with ``--redact-also``.

A user name that is also a common word (``max``, ``train``) is replaced only in contexts of user names: in a home path,
after ``user=``, in a table column. Names that exist on every machine (``root``, ``ubuntu``) are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from trackside.bundle.redact.hosts import FILES
from trackside.bundle.redact.kind import WORD_START, LeakPattern, NameKind, word
from trackside.bundle.redact.literal import any_of, numbered_pseudonyms
from trackside.bundle.redact.prefilter import Detector, LinePattern, detector, literal

_NAME = r"([A-Za-z_][A-Za-z0-9_.-]{0,63})"
_PATHS = re.compile(
    # Some sites group home folders by first letter.
    rf"(?:/(?:home|homes|Users|users|user|people)|[A-Za-z]:\\{{1,2}}Users\\?)[/\\](?:[a-z]/)?{_NAME}"
)
_LOGIN = r"([a-z][a-z0-9_]{2,15}|[a-z]{1,12}\.[a-z]{3,15})(?![\w.-])"
_USER_FOLDERS = (
    # ``pypi.org/project/name`` is a web page.
    re.compile(
        rf"(?<!\.[a-z]{{2}})(?<!\.[a-z]{{3}})(?<!\.example)/(?:scratch|work|works|project|projects|proj|storage|data/users)/(?:[a-z]/)?{_LOGIN}"
    ),
    re.compile(rf"(?<![\w/.~])~{_LOGIN}(?=/)"),
    # Parallel file systems, which often have a folder for each user.
    re.compile(rf"(?<!\.[a-z]{{2}})(?<!\.[a-z]{{3}})/(?:fsx|beegfs|lustre|weka|vast|ceph|gpfs)/(?:[a-z]/)?{_LOGIN}"),
    re.compile(rf"/(?:fsx|beegfs|lustre|weka|vast|ceph|gpfs)/(?:users|home|homes|scratch|work)/{_LOGIN}"),
)
"""Folders that often belong to a user."""
_HOMES = re.compile(
    rf"/{_NAME}/(?:\.(?:local|cache|conda|ssh|config|bashrc|profile|vscode-server|netrc|keras|triton)|(?:mini|ana)conda\d?)\b"
)
"""A folder with these entries is a home folder."""
_LABELED = (
    re.compile(rf"/gpfs/[a-z]/home/[\w.-]{{1,64}}/{_NAME}"),
    re.compile(rf"\b(?:docker|podman|nerdctl|skopeo) login\b[^\n]{{0,200}}? (?:-u|--username)[ =][\"']?{_NAME}"),
    re.compile(
        rf"\b(?:mysql|mysqldump|mysqladmin|mariadb|psql)\b[^\n]{{0,200}}? (?:-[uU]|--user(?:name)?)[ =]?[\"']?{_NAME}"
    ),
    re.compile(rf"\bHOME=(?:/[\w.-]+){{1,8}}/{_NAME}(?=[\s\"':;]|$)", re.MULTILINE | re.ASCII),
    re.compile(rf"\b(?:UserId|GroupId)={_NAME}\("),
    re.compile(rf"\b(?:USER|LOGNAME|USERNAME|SLURM_JOB_USER|SUDO_USER)={_NAME}"),
    re.compile(rf"\b(?:User|user|job_user|username|user_name)=[\"']?{_NAME}"),
    re.compile(rf"[\"'](?:user|user_name|username|job_user|owner|group_name|group)[\"'][ \t]*:[ \t]*[\"']{_NAME}[\"']"),
    re.compile(rf"\b[ug]id=\d+\({_NAME}\)"),
    re.compile(rf"logged in as:? (?:\x1b\[[0-9;]{{0,9}}m)?{_NAME}"),
    re.compile(r"://([A-Za-z_][\w.-]{0,18})(?=(?::[^/\s\"'<>]{1,200})?@)"),
    re.compile(rf"(?:^|[\s\[(=]){_NAME}@[A-Za-z][\w-]{{1,60}}(?=:[~/]|[ ~]*[$#\]])", re.MULTILINE | re.ASCII),
    re.compile(rf"curl\b[^\n]{{0,200}}? -u[ =]?[\"']?{_NAME}(?=:)"),
    re.compile(rf"\bAAAA[A-Za-z0-9+/=]{{20,1000}} {_NAME}(?=@)"),
    re.compile(rf"\blogin {_NAME}(?= password)"),
    re.compile(rf"\bssh (?:-\S+ ){{0,3}}{_NAME}(?=@)"),
    re.compile(
        r"\b(?:[Oo]wner|OWNER|[Uu]ser(?:name)?|[Aa]uthor|[Cc]ommitter|[Ss]ubmitter|Signed-off-by|[Cc]o-[Aa]uthored-[Bb]y)"
        r"[ \t]{0,8}[:=][ \t]{0,8}"
        r"([A-Z][\w'-]{1,30}(?: [A-Z][\w'.-]{0,30}){1,3}|[a-z][a-z0-9_.-]{1,30}(?=[ \t]*(?:[\n,;(<|]|$)))",
    ),
    re.compile(
        r"\b(?:[Ss]ubmitted|[Oo]wned|[Rr]equested) by(?: user)? "
        r"([a-z][a-z0-9_.-]{1,30}|[A-Z][\w'-]{1,30} [A-Z][\w'-]{1,30})"
    ),
)
_ACCOUNTS = (
    re.compile(rf"\b(?:Account|SLURM_JOB_ACCOUNT|WCKey)=\*?{_NAME}"),
    re.compile(rf"[\"'](?:account|wckey|organization)[\"'][ \t]*:[ \t]*[\"']{_NAME}[\"']"),
)
NEUTRAL = frozenset(
    """
opt usr local share apps app software soft lib bin var etc tmp pub envs env mnt nfs gpfs lustre fsx workspace content
admin administrator all anonymous app appuser azureuser batch centos cluster common conda daemon data debian debug
default docker ec2-user git gitlab-ci-token false fedora guest home jovyan linux login munge mysql n/a nobody none
normal null nvidia oauth2 opc postgres project projects public ray redis rocky root runner scratch shared slurm sshd
standard systemd test token true ubuntu unknown user users vagrant vscode wandb work www-data x-access-token
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Names that identify nobody."""
_WORDS = frozenset(
    """
ai all any april art august avg base batch bill cpu cuda data dataset dawn dean debug dev drew earl end epoch err
error eval false file gene gpu grace grant guy hope host id info job jobs joy june kernel key lab lance log logs loss
main mark mat max may mean memory miles min ml model models name neil net nick node nodes none norm off on out pat
path pierce prod python rank ray rich rob rod ron rose roy run runs sandy size skip spike start step steps stew stop
sue sum summer tad task team test time torch train trainer training trey true type value van wade ward warning web
will
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Words common in logs: as user names they are replaced only in contexts of user names."""
_FOLDERS = frozenset(
    """
apps archive audio backup bench benchmark benchmarks bert build cache caches checkpoint checkpoints ckpt ckpts code
codes config configs container containers corpora corpus datasets deepspeed deploy devel dist downloads dump
evaluation experiment experiments fineweb fs gpt group groups imagenet images install laion libs llama llm megatron
miniconda misc mlperf modules nemo nvme output outputs pile pool pretrain pretraining proj pytorch release repo repos
research results scripts singularity site source sources spack src ssd staging storage system temp tests text tier
tokenized tokenizer tokenizers tools transformers tuning venv venvs video vision vol volumes weights wheels wiki
workdir
""".split()  # noqa: SIM905 - a list of words is read as one
)
"""Folders that belong to no user."""
_STATES = (
    "R|PD|CG|CD|CA|F|TO|NF|OOM|RUNNING|PENDING|COMPLETING|COMPLETED|CANCELLED|FAILED|TIMEOUT|NODE_FAIL|OUT_OF_MEM\\w*"
    "|REQUEUED|PREEMPTED"
)
_CONTEXTS = (
    (r"(?:(?<=/home/)|(?<=/homes/)|(?<=/Users/)|(?<=/users/)|(?<=/people/))", r"(?![\w-])"),
    (
        r"(?:(?<=[Uu]ser=)|(?<=USER=)|(?<=LOGNAME=)|(?<=Id=)|(?<=Account=)|(?<=user\":\")|(?<=user\": \"))",
        r"(?![\w-])",
    ),
    (r"(?<=\|)", r"(?=\|)"),
    # A row of a Slurm table, with the job's state in a later column.
    (r"(?<=  )", rf"(?=[ \t]+(?:[\w.:-]+[ \t]+){{0,4}}(?:{_STATES})[ +\n])"),
)
"""(before, after) patterns of contexts of user names."""
_CONTEXT_TEXTS = (
    "/home/", "/homes/", "/Users/", "/users/", "/people/", "User=", "user=", "USER=", "LOGNAME=", "UserId=", "Account=",
    'user":"', 'user": "',
)  # fmt: skip
"""The same contexts as plain text, to search for missed names."""


class LabeledNames(NameKind):
    """Names of users, accounts or clusters, learned from records and from the text before them."""

    def __init__(
        self,
        plural: str,
        word: str,
        patterns: Iterable[re.Pattern[str]],
        folder_patterns: Iterable[re.Pattern[str]] = (),
    ) -> None:
        super().__init__()
        self.plural, self._word, self._label_patterns = plural, word, tuple(patterns)
        self._folder_patterns = tuple(folder_patterns)
        self._folders: set[str] = set()
        """Originals found only as folder names: replaced only in paths."""
        self._sure: set[str] = set()
        self._by_lower_case: dict[str, str] = {}
        """Original in lower case -> pseudonym."""
        self._patterns: tuple[re.Pattern[str], ...] = ()

    @property
    def detectors(self) -> Sequence[Detector]:
        return [
            *(detector(pattern, self.add) for pattern in self._label_patterns),
            *(detector(pattern, self._add_folder) for pattern in self._folder_patterns),
        ]

    def add(self, text: str) -> None:
        """Learn a name."""
        text = text.strip().rstrip(".-")
        if len(text) > 1 and text.lower() not in NEUTRAL and not text.isdecimal():
            self._originals.add(text)
            self._sure.add(text)

    def _add_folder(self, text: str) -> None:
        """Learn a folder name from a location that often has user folders."""
        stem = text.rstrip("0123456789_").lower()
        is_word = stem in NEUTRAL or stem in _WORDS or stem in _FOLDERS or stem + "s" in _FOLDERS
        if not is_word and text not in NEUTRAL and text.rpartition(".")[2] not in FILES:
            self._originals.add(text)
            self._folders.add(text)

    def assign_pseudonyms(self) -> None:
        self._folders -= self._sure
        ordered = sorted(self._originals)
        full_names = {name[:_TRUNCATED_LENGTH]: name for name in reversed(ordered) if len(name) > _TRUNCATED_LENGTH}
        self.pseudonyms = numbered_pseudonyms(
            (name for name in ordered if name not in full_names), self._word, self._originals
        )
        self.pseudonyms |= {
            name: self.pseudonyms[full_name] for name, full_name in full_names.items() if name in self._originals
        }
        self._by_lower_case = {original.lower(): pseudonym for original, pseudonym in reversed(self.pseudonyms.items())}
        common = {name for name in self._originals if _is_common(name)}
        common |= self._folders
        short = {name for name in self._originals - common if len(name) < MIN_CASELESS_LENGTH}
        patterns = [
            any_of(self._originals - common - short, WORD_START, r"(?![A-Za-z])", re.IGNORECASE | re.ASCII),
            any_of(short, WORD_START, r"(?![A-Za-z])"),
            any_of(self._folders, r"(?<=[/\\~])", r"(?![\w-])"),
            *(any_of(common, before, after, re.MULTILINE) for before, after in _CONTEXTS),
        ]
        self._patterns = tuple(pattern for pattern in patterns if pattern is not None)

    def redact(self, text: str) -> str:
        for pattern in self._patterns:
            text = pattern.sub(self._replacement, text)
        return text

    def _replacement(self, match: re.Match[str]) -> str:
        return self.pseudonyms.get(match[0]) or self._by_lower_case[match[0].lower()]

    def line_patterns(self) -> Iterable[LinePattern]:
        for name in self.pseudonyms:
            if name in self._folders:
                yield LinePattern(rb"[/\\~|=:\" ]" + literal(name).regex)
            elif _is_common(name):
                yield LinePattern(rb"(?:/|\||[=:]\"?|: \"|  )" + literal(name).regex)
            else:
                yield word(name, caseless=True)

    def leak_patterns(self) -> Iterable[LeakPattern]:
        """Leak patterns of all names; of common words only in contexts of names."""
        for text, pseudonym in self.pseudonyms.items():
            if text in self._folders:
                yield LeakPattern("/" + text, pseudonym, "", r"(?![\w-])", exact=True)
                continue
            if not _is_common(text):
                yield LeakPattern(text, pseudonym, exact=len(text) < MIN_CASELESS_LENGTH)
                continue
            for context in _CONTEXT_TEXTS:
                yield LeakPattern(context + text, pseudonym, "", r"(?![\w-])", exact=True)


MIN_CASELESS_LENGTH = 4
"""Names of at least this length are replaced case-insensitively."""
_TRUNCATED_LENGTH = 8
"""Characters to which ``squeue`` and ``sacct`` truncate names."""


def _is_common(name: str) -> bool:
    return name.lower() in _WORDS or len(name) < 3


def users() -> LabeledNames:
    """The kind of user names and their groups."""
    return LabeledNames("user names", "user", (_PATHS, _HOMES, *_LABELED), folder_patterns=_USER_FOLDERS)


def accounts() -> LabeledNames:
    """The kind of accounts that jobs are billed to."""
    return LabeledNames("accounts", "account", _ACCOUNTS)


def clusters() -> LabeledNames:
    """The kind of Slurm cluster names."""
    patterns = (
        re.compile(rf"\b(?:ClusterName|SLURM_CLUSTER_NAME)[ \t]?=[ \t]?{_NAME}"),
        re.compile(rf"[\"']cluster(?:_name)?[\"'][ \t]*:[ \t]*[\"']{_NAME}[\"']"),
    )
    return LabeledNames("clusters", "cluster", patterns)


class ExtraWords(NameKind):
    """Words given with ``--redact-also``, case-insensitive and also within words."""

    plural = "given words"

    def __init__(self, words: Iterable[str]) -> None:
        super().__init__()
        self.pseudonyms = {
            word.lower(): f"word-{n}" for n, word in enumerate(sorted({w.strip() for w in words if w.strip()}), 1)
        }
        self._pattern = any_of(self.pseudonyms, flags=re.IGNORECASE)

    def redact(self, text: str) -> str:
        return (
            text if self._pattern is None else self._pattern.sub(lambda match: self.pseudonyms[match[0].lower()], text)
        )

    def line_patterns(self) -> Iterable[LinePattern]:
        # The matcher is caseless only for ASCII; for other words every line is searched.
        return (literal(word, caseless=True) if word.isascii() else LinePattern(rb"[^\n]") for word in self.pseudonyms)

    def leak_patterns(self) -> Iterable[LeakPattern]:
        for text, pseudonym in self.pseudonyms.items():
            spellings = {text} if text.isascii() else {text, text.upper(), text.title(), text.capitalize()}
            yield from (LeakPattern(spelling, pseudonym, "", "") for spelling in sorted(spellings))
