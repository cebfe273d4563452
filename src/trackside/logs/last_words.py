"""Last words of a program that a person stopped, in whatever wording: only at a log's end, where they cannot be advice."""

from __future__ import annotations

import re

from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_LAST_WORDS = re.compile(
    r"\b(?:interrupt(?:ed|ing|ion|s)?|keyboard ?interrupt(?:ion|ed)?|sigint|cancell?ed|cancell?ation|(?:ctrl|control) ?[-+] ?c)\b|\^C"
    r"|\b(?:stopp?|abort|terminat|quit|kill|halt|shut ?down|end|exit|cancel)(?:s|ed|ing|ion)?\b.{0,40}\b(?:by (?:the |a )?(?:user|hand|operator|keyboard)|manually|on request)\b|\bexiting from training early\b"
    r"|\b(?:user|manual(?:ly)?|operator)\b(?!:).{0,24}\b(?:stopp?|abort|terminat|quit|kill|halt|shut ?down|cancel|exit)(?:s|ed|ing|ion)?\b"
    r"|\b(?:graceful(?:ly)?|requested) (?:shut ?down|stop|exit)\b|\b(?:shut ?down|stop|exit) requested\b"
    r"|(?:训练|程序|用户|手动|已|被)(?:\w{0,6})(?:中断|取消)|中断(?:训练|しました|されました)|手动停止|用户(?:停止|终止)|キャンセル(?:しました|されました)|사용자.{0,12}중단|중단되었습니다"
    r"|\b(?:interrumpid[oa]|interrompid[oa]|interrompue?|interrotto|unterbrochen|cancelad[oa]|annulée?|abgebrochen)\b|\bпрерван[оаы]?\b",
    re.IGNORECASE,
)
"""What a program says last when a person stopped it."""
_NO_LAST_WORDS = re.compile(
    r"\b(?:error|fail(?:ed|ure)?|exception|out of memory|nan|dataset|data|connection|network|download|disk|signal \d+|sigterm|worker|thread|timeout|timed out|early stop\w*|no improvement|patience|converge\w*|not|handlers?|spot|container)\b"
    r"|: (?:line|Zeile|ligne|línea|linha) \d|\d \s{0,12}\w{1,12}\s{0,24}\(|^\s*(?:except|raise|catch)\b|n't\b|preempt|: ?\d+\W*$|\b(?:interrupted|cancell?ed) \d|^\s*File \"|[=(]\s*True|[=(]\s*False",
    re.IGNORECASE,
)
"""What says that something else than a person stopped it, or that nothing did."""
_KEYBOARD = re.compile(r"interr|sigint|\b(?:ctrl|control)\b|\^C|keyboard|中断|중단|прерван|unterbrochen", re.IGNORECASE)
"""What names an interrupt, not only a stop."""
MAX_LAST_WORDS_CHARS = 200
"""A longer line is no such sentence."""
_MAY_FOLLOW = re.compile(
    r"^[\W_]*$|\b(?:sav(?:ed|ing|e)|checkpoint\w*|writ(?:ten|ing|e)|stor(?:ed|ing)|exit(?:ed|ing)?|bye|done|clos(?:ed|ing)|clean(?:ed|ing)?|shut(?:ting)? ?down|"
    r"best|finish(?:ed)?|total|time|elapsed|wandb|run (?:history|summary)|synced|test(?:ing)?|evaluat\w*)\b|^(?:real|user|sys)\s",
    re.IGNORECASE,
)
"""What a program still does or says after it was stopped."""
MAX_LINES_AFTER_STOP = 12
"""Lines below the last words, at most."""
MAX_BYTES_AFTER_STOP = 4_000
"""Bytes of these lines, at most."""
_CONDITION = re.compile(r"\b(?:if|when|press|can|may|to (?:stop|quit|exit|kill|cancel))\b", re.IGNORECASE)
"""What makes such words a condition or an offer."""

PARSER = Parser("last-words", "last words of a program that a person stopped", "system")


@PARSER.pattern(
    rb"(?:interrupt|cancel|sigint|\^C|(?:ctrl|control) ?[-+] ?c|by (?:the |a )?(?:user|hand|operator|keyboard)|manual|user|exiting from|request|graceful|requested"
    + "|中断|取消|手动|用户|キャンセル|중단|interr|unterbrochen|cancelad|annul|abgebrochen|прерван".encode()
    + rb")",
    safety="Only as a program's last words, with no more than saves and closing lines below; not with the words of an error or a condition.",
    matches=(
        "Epoch 3, loss 0.41\nTraining was stopped manually at epoch 4",
        "Keyboard interrupt -- the weights go to last.pt\nSaved last.pt",
        "User requested stop",
        "KeyboardInterrupt",
        "Graceful shutdown requested",
        "用户中断训练",
    ),
    avoids=(
        "Interrupt handler installed",
        "Training was stopped manually at epoch 4\nEpoch 5\nloss 0.3\nEpoch 6",
        "Press Ctrl-C to cancel",
        "Early stopping at epoch 9",
        "Download interrupted, connection lost",
        "SIGTERM: cancelled by the scheduler",
    ),
    caseless=True,
)
def _last_words(line: Line) -> Event | None:
    if not line.is_near_end(MAX_BYTES_AFTER_STOP):
        return None
    text = line.text
    if len(text) > MAX_LAST_WORDS_CHARS or _LAST_WORDS.search(text) is None:
        return None
    if _NO_LAST_WORDS.search(text) or _CONDITION.search(text):
        return None
    if line.offset <= line.notes("python").get("end", -1):
        return None  # inside a traceback
    rest = [other.text for other in line.following(MAX_LINES_AFTER_STOP + 1)]
    if len(rest) > MAX_LINES_AFTER_STOP or not all(map(_MAY_FOLLOW.search, rest)):
        return None
    exits.note_ending(line, "interrupt")
    return line.event("user_interrupt", EventRole.ROOT, by="job", by_hand=None if _KEYBOARD.search(text) else True)
