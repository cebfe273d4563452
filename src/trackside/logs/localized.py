"""Progress lines in other languages, put into the English words that the other modules read: ``迭代 12/80, 总损失: 0.37``."""

from __future__ import annotations

import re

from trackside.logs.error_words import byte_regexes

LOSS_WORDS = (
    *("损失", "損失", "손실", "ロス", "потери", "потеря", "потерь"),
    *("pérdida", "perdida", "perda", "perte", "verlust"),
)
_WORDS = {
    "loss": LOSS_WORDS,
    "total": ("总", "總", "전체", "合計", "общие", "общая"),
    "avg": ("平均", "평균", "средние", "средняя", "promedio", "média", "moyenne", "mittlerer"),
    "train": (
        *("训练", "訓練", "학습", "훈련", "обучения", "обучение", "обучающие"),
        *("entrenamiento", "treinamento", "treino", "entraînement", "entrainement", "apprentissage"),
    ),
    "val": ("验证", "驗證", "検証", "검증", "валидации", "валидация", "validación", "validação", "validierung"),
    "test": ("测试", "測試", "テスト", "테스트", "тест", "prueba", "teste"),
    "epoch": ("轮次", "轮", "世代", "エポック", "에폭", "에포크", "эпоха", "época", "epoca", "époque", "epoche", "ép"),
    "step": (
        *("训练次数", "迭代次数", "迭代", "步数", "步", "ステップ", "스텝", "шаг", "итерация"),
        *("iteración", "iteração", "itération", "paso", "passo", "schritt"),
    ),
    "lr": ("学习率", "學習率", "学習率", "학습률", "学习速率"),
    "best": ("最佳", "最好", "最优", "최고", "лучш", "mejor", "melhor", "meilleur"),
}
_ENGLISH = {word: english for english, words in _WORDS.items() for word in words}
_ANY_WORD = re.compile(
    "|".join(
        rf"(?<![^\W\d]){word}(?:\b|(?=\d))" if ord(word[0]) < 0x400 else word
        for word in sorted(_ENGLISH, key=len, reverse=True)
    ),
    re.IGNORECASE,
)
_ORDINAL = re.compile(r"第\s?(\d{1,9})\s?(轮|輪|步|エポック|ステップ|个?epoch|次迭代|代)", re.IGNORECASE)
_STEP_ORDINALS = ("步", "ステップ", "次迭代")
_QUALIFIED = re.compile(r"(?<=[^\W\d_a-zA-Z])(?:of |de |do |du )?loss")
_BLANKS = re.compile(r" +(?=[:=,])|(?<= ) +")
_GLUED = re.compile(r"(?<=\d)(?=loss\b)", re.IGNORECASE)
"""Between a count and the name of the next figure: ``训练次数：1Loss:0.91``."""
_OTHER_SCRIPT = re.compile(r"[\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")
_CONNECTED = re.compile(
    r"\bloss (?:de(?: la| l'| los)?|do|du|da|von|im) (train|val|test|avg|total)\b|\bloss (train|val|test|avg|total)\b"
)


def prefilter() -> bytes:
    """The regex of a pattern that selects the lines in which such a loss is printed."""
    words = sorted({spelling for word in LOSS_WORDS for spelling in byte_regexes(word)})
    return b"(?:" + b"|".join(words) + rb")[^\n\r0-9]{0,30}[0-9]"


def to_english(text: str) -> str:
    """The text with the words that name positions, losses and splits in English; a loss behind another word is a part."""
    text = _ORDINAL.sub(lambda match: f"{'step' if match[2] in _STEP_ORDINALS else 'epoch'} {match[1]} ", text)
    text = _ANY_WORD.sub(_spaced, text)
    text = _QUALIFIED.sub(" part_loss", text)
    text = _GLUED.sub(" ", _BLANKS.sub("", text.replace("：", ": ").replace("，", ", ")))
    return _CONNECTED.sub(lambda match: f"{match[1] or match[2]} loss", text)


def is_in_other_script(text: str) -> bool:
    """Whether a text has letters of another script than the Latin one."""
    return _OTHER_SCRIPT.search(text) is not None


def _spaced(match: re.Match[str]) -> str:
    """The English word, apart from English words next to it; a loss stays next to a word that is not known."""
    word = _ENGLISH[match[0].lower()]
    before = match.string[: match.start()]
    unknown = before[-1:].isalpha() and not before[-1:].isascii() and not _ends_in_known_word(before)
    return f"{word} " if word == "loss" and unknown else f" {word} "


def _ends_in_known_word(text: str) -> bool:
    """Whether a text ends in a word that is put into English."""
    return any(text.lower().endswith(word) for word in _ENGLISH)
