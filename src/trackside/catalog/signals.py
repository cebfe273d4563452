"""Signals, and how shells, Python, launchers and Slurm print the end of a process.

Signal numbers are those of Linux on x86-64 and ARM64, whatever machine this runs on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trackside.catalog.natural import whole_number

_NAMES_BY_NUMBER = """
SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM SIGTERM
SIGSTKFLT SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGXCPU SIGXFSZ SIGVTALRM SIGPROF SIGWINCH SIGIO SIGPWR
SIGSYS
"""
SIGNAL_NAMES: Mapping[int, str] = dict(enumerate(_NAMES_BY_NUMBER.split(), 1))
"""number -> name"""
SIGNAL_NUMBERS: Mapping[str, int] = {name: number for number, name in SIGNAL_NAMES.items()} | {
    "SIGIOT": 6,
    "SIGPOLL": 29,
}
"""name -> number"""
DESCRIPTIONS: Mapping[str, int] = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "trace/breakpoint trap": 5,
    "aborted": 6,
    "abort": 6,
    "abort trap": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "user defined signal 1": 10,
    "segmentation fault": 11,
    "user defined signal 2": 12,
    "broken pipe": 13,
    "alarm clock": 14,
    "terminated": 15,
    "cpu time limit exceeded": 24,
    "file size limit exceeded": 25,
    "bad system call": 31,
}
"""What shells, srun and mpirun print for a signal (strsignal), lower case -> number"""
TRANSLATED_DESCRIPTIONS: Mapping[str, int] = {
    "已杀死": 9,
    "已放弃": 6,
    "已中止": 6,
    "段错误": 11,
    "总线错误": 7,
    "已终止": 15,
    "非法指令": 4,
    "已砍掉": 9,
    "程式記憶體區段錯誤": 11,
    "強制終了": 9,
    "アボートしました": 6,
    "バスエラー": 7,
    "セグメンテーション違反": 11,
    "죽었음": 9,
    "중지됨": 6,
    "세그멘테이션 오류": 11,
    "getötet": 9,
    "abgebrochen": 6,
    "speicherzugriffsfehler": 11,
    "bus-zugriffsfehler": 7,
    "processus arrêté": 9,
    "tué": 9,
    "erreur de segmentation": 11,
    "erreur du bus": 7,
    "violación de segmento": 11,
    "terminado (killed)": 9,
    "abortado": 6,
    "error en el bus": 7,
    "ucciso": 9,
    "annullato": 6,
    "errore di segmentazione": 11,
    "errore di bus": 7,
    "morto": 9,
    "falha de segmentação": 11,
    "unicestwiony": 9,
    "naruszenie ochrony pamięci": 11,
    "убито": 9,
    "аварийный останов": 6,
    "ошибка сегментирования": 11,
    "ошибка шины": 7,
}
"""The same texts in glibc's translations, as printed under other locales -> number"""

CRASH_SIGNALS = frozenset({3, 4, 5, 6, 7, 8, 11, 24, 25, 31})
"""Signals caused by the process itself; all but 6 by a fault in its own instructions or limits."""
SLURM_SIGNALS: Mapping[int, str] = {
    53: "the Slurm step could not be launched: its output could not be opened",
    54: "the prolog failed",
    125: "out of memory: killed by the cgroup's OOM killer",
}
"""Numbers in the signal part of Slurm's ExitCode that are not signals (0:53, 0:54, 0:125) -> meaning"""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: a plain exit ``code`` or a ``signal`` number."""

    code: int | None = None
    signal: int | None = None

    @property
    def signal_name(self) -> str | None:
        """Name of the signal, such as SIGKILL; None without a signal."""
        return None if self.signal is None else signal_name(self.signal)


def signal_name(number: int) -> str:
    """Name of a signal; real-time and unknown signals as ``SIG34``."""
    return SIGNAL_NAMES.get(number, f"SIG{number}")


def signal_number(text: str) -> int | None:
    """The signal in a text such as ``SIGKILL``, ``KILL``, ``9``, ``Signals.SIGTERM`` or ``Segmentation fault``."""
    text = text.strip().removeprefix("Signals.")
    number = whole_number(text)
    if number is not None:
        return number if 0 < number < 65 else None
    upper = text.upper()
    return (
        SIGNAL_NUMBERS.get(upper)
        or SIGNAL_NUMBERS.get("SIG" + upper)
        or DESCRIPTIONS.get(text.lower())
        or TRANSLATED_DESCRIPTIONS.get(text.lower())
    )


def read_code(code: int) -> Exit:
    """The exit for a code as written by shells (128 + n) or Python (-n)."""
    if code < 0:
        return Exit(signal=-code) if code > -65 else Exit(code=code)
    if 128 < code <= 128 + 31:
        return Exit(code=code, signal=code - 128)
    return Exit(code=code)
