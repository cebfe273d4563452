"""Messages of a job itself that training began or ended."""

from __future__ import annotations

import re

from trackside.logs.error_words import byte_regexes
from trackside.logs.line import Line
from trackside.logs.numbers import number, whole_number
from trackside.logs.pattern import Parser
from trackside.model import Event

_SENTENCE_START = r"(?:^|[\]\[:|>*=#!.,}-]|(?!\w)[^\x00-\x7f]|\bINFO)\s{0,8}(?:the |model |all )?"
"""What may be before the sentence: only a log's prefix, so that the sentence is about training itself."""
_TRAINING_END = re.compile(
    _SENTENCE_START
    + r"(?:(?:(?:(?:pre|fine|post|re|self)-?)?train(?:ing)?|fine-?tuning|distillation|experiment|run)(?: loop| run| job| process)?(?: has| is| was)?(?: been)?(?: now)?(?: successfully)? "
    r"(?:complete|completed|finished|done|ended|over(?=\W*$))\b(?! (?:epoch|step|iter))"
    r"|(?:end of|end|finish) (?:the )?training\W*$|end of training\. time consumed: \d|(?:stopping|stopped) training early\b|training (?:was )?stopped early\b"
    r"|max(?:imum)?(?: number of)? (?:epochs|iterations|steps) reached\b"
    r"|(?:finished|completed|done(?: with)?) (?:model |the )?training\b(?! (?:epoch|step|batch|set|data|model|image))"
    r"|(?:finished|completed)(?: all)?(?: after)? [\d,]{1,15} (?:training )?(?:steps|iterations|iters|epochs|updates)\b"
    r"|\d{1,6} epochs completed in \d"
    r"|(?:(?:hyper-?parameter |model )?optimi[sz]ation|(?:(?:hyper-?parameter|grid|random|architecture|model|parameter) |auto(?:re)?)search) (?:is )?(?:complete|completed|finished)\b"
    r"|all \d{0,6} ?(?:epochs|folds|trials|runs|seeds|experiments|stages|phases|models|trainings) (?:are )?(?:complete|completed|finished|done)\b"
    r"|(?:early[ -]?stopping|early stop|stopping early)(?: (?:was |is )?(?:triggered|activated|reached|condition (?:met|reached)))?(?: (?:at|after|in|on) (?:epoch|step|iteration) ?#?\d{1,9}| after \d{1,9} (?:epochs|steps|iterations)| early)?\s?[.!]{0,3}\s*$"
    r"|early[ -]?stop(?:ping|ped)?\W{1,3}(?:\w+ ){0,3}(?:no improvement|did(?:n't| not) improve) (?:for|in|over) (?:the last )?\d{1,6} "
    r"|(?:stopping|stopped|exiting|terminating|terminated) (?:training )?early\b|early[ _-]?stop\w{0,4}\W{1,3}(?:stop|end)(?:ped|ping|ed|ing)?\b"
    r"|(?:there (?:is|was) )?no improvement\b.{0,60}\b(?:stop|terminate|exit|break)(?:ped|ping|d|ing)?\b|patience (?:limit |of \d{1,6} (?:epochs )?)?(?:is |was )?(?:exhausted|exceeded|reached)\b"
    r"|max[_ ](?:epochs|steps|iters|iterations) (?:is |was )?reached\b|successfully (?:trained|fine-?tuned)\b"
    r"|(?:job|script|program|experiment|run) (?:is |was |has )?(?:finished|completed|ended) (?:at|on|after)\b"
    r"|experiment [\w.-]{1,60} (?:is |has )?(?:been )?(?:finished|completed|done)\b"
    r"|(?:finished|completed) (?:all )?(?:the )?(?:experiments|runs|trials|folds|seeds)\b"
    r"|total (?:running|run|elapsed) time(?: ?\([^)\n]{1,12}\))?[: ]{1,3}\d|(?:total )?training (?:time|took)\b(?: was)?(?: ?\([^)\n]{1,12}\))?[: ]{1,3}\d"
    r"|stopping_early: |total time for train(?:ing)? steps: \d|final (?:validation|evaluation|eval|test) (?:metrics|results)\b"
    r"|reached (?:(?:the )?max(?:imum)?[_ ](?:number of )?(?:steps|epochs|iter\w*)|the (?:last|final) step)\b)",
    re.IGNORECASE,
)
_NOT_NOW = re.compile(
    r"\bCurrent time: \d|\bshut ?down|\bclean-?up|(?:\bnot|n't)\b(?! improve)|\b(?:never|if|when|until|before|will|would|should|once|unless|epoch \d+ (?:training|finished))\b|\?|%\|",
    re.IGNORECASE,
)
_BARE_END = re.compile(
    r"[\W\d]{0,60}(?:INFO\W{1,4}|[\w.]{1,40} - INFO - )?(?:all |we are |everything |job |script |(?!(?:\w+ ){0,2}(?:(?:e?val|test|load|sav|check|download|prepro|initial|compil|extract|convert|shut|clean)\w*|data(?:set)?|epoch|step|batch|fold|setup|warm-?up|model) )(?:[a-z][a-z-]{1,19} ){1,2})?(?:is )?(?:done|finish(?:ed)?|completed?)(?: successfully)?\W{0,60}$",
    re.IGNORECASE,
)
_DURATION = r"[: =|~]{0,4}(?:\d|(?:\w+ ){0,2}\d[\d.:]{0,12} ?(?:s|sec|min|h|hours?|minutes?|seconds?|ms|days?)\b)"
_CLOSING_REPORT = re.compile(
    r"^[^A-Za-z]{0,60}(?:INFO\W{1,4}|[\w.]{1,40} - INFO - )?(?:"
    r"(?:total |overall |full )?(?:cost |elapsed |run(?:ning)? |wall[- ]?(?:clock )?|execution |training )?time(?: elapsed| taken| cost| used| spent)?\W{0,4}(?:\([a-z: ]{1,12}\))?"
    + _DURATION
    + r"|(?:elapsed|runtime|duration|completed in|finished in|done in)\W{0,4}"
    + _DURATION
    + r"|(?:all )?(?:done|finished)[.!] .{1,120}"
    r"|(?:final|overall|test(?:ing)?(?: set)?)\b[^.]{0,60}?\b(?:acc\w*|loss|score|error|f1|auc|r2|map|miou|dice|bleu|psnr|mse|mae|rmse|results?|metrics|performance|precision|recall)\b[^.\n]{0,24}\d"
    r")",
    re.IGNORECASE,
)
"""A last line that sums up the whole: how long it took, or how good the final model is."""
_SAVED_MODEL = re.compile(
    r"\b(?:sav(?:ed|ing)|export(?:ed|ing)|wrote|written)\b.{0,60}\b(?:model|weights|classifier|forecaster|pipeline|estimator)\b"
    r"|\b(?:model|weights|classifier|forecaster|pipeline|estimator)\b.{0,60}\b(?:saved|exported|written)\b",
    re.IGNORECASE,
)
"""A last line that a trained model was saved: the end of a program that counts no steps."""
_NOT_LAST = re.compile(r"\b(?:epoch|step|iter\w*|batch|fold|eta|remaining|per|(?<!done\. )best)\b|%\|", re.IGNORECASE)
MAX_LINES_COMPARED = 300
"""Lines above a closing report in which it must not stand: what is printed again and again closes nothing."""
_EPILOGUE = re.compile(
    r"\s*(?:real|user|sys)\s+\d|\W+$|\w{3} \w{3} {1,2}\d{1,2} [\d:]{8}|\d{4}-\d\d-\d\d[T ][\d:.]{8,}\S*\s*$"
)
"""Lines that a shell prints behind the job's own last one: times and dates."""
MAX_EPILOGUE_LINES = 8
"""Lines after the last word that are looked at."""
MAX_EPILOGUE_BYTES = 2_000
"""Bytes of these lines, at most."""
MAX_LINES_AFTER_TRACEBACK = 6
"""A last word so close behind a traceback is the job script's, not the training's."""
MAX_LINES_AFTER_EVALUATION = 15
"""Lines with text after the end of an evaluation that is the run's: results, and what libraries print when they exit."""
MAX_INFLECTION_CHARS = 8
"""Letters after the sentence, in languages that inflect its last word."""
_FIGURES = re.compile(r"[|:：(（]")
"""What stands between such a sentence and figures of the run."""
_TRAINING_START = re.compile(
    _SENTENCE_START
    + r"(?:start(?:ing|ed)?|begin(?:ning)?|entering) (?:the )?(?:\w+ )?training(?: loop)?\b(?! (?:data|set|config))",
    re.IGNORECASE,
)
_LETTERS = re.compile(r"[^\W\d_]+")
_STEPS = re.compile(r"\b([\d,]{1,15}) (?:training )?(?:steps|iterations|iters|updates)\b")
_CLOCK = re.compile(r"(?:time|took|in)[: ]{1,3}(?:(\d+) days?, )?(\d{1,3}):(\d\d):(\d\d)")
_SECONDS = re.compile(r"(?:time|took|in|after)[: ]{1,3}(\d+\.?\d*) ?(?:s|sec|secs|seconds)\b")
_NAN = r"(?:nan|inf(?:inite)?|non-?finite|not (?:finite|a number))"
_STOP = r"(?:stop(?:ping|ped)?|end(?:ing|ed)?|abort(?:ing|ed)?|exit(?:ing|ed)?|terminat(?:ing|ed)|quit(?:ting)?|halt(?:ing|ed)?)"
_STOP_AT_NAN = re.compile(
    rf"\b(?:loss\w*\b.{{0,40}}\b{_NAN}\b|{_NAN}\b.{{0,30}}\bloss\w*)\b.{{0,40}}\b{_STOP}\b"
    r"|\bModel diverged with loss = NaN",
    re.IGNORECASE,
)
_TRACEBACK_LINE = re.compile(r"^\s*(?:File \"|[\w.]+(?:Error|Exception)\b|raise |#|def )")

PARSER = Parser("lifecycle", "start and end of training", "framework")


@PARSER.pattern(
    rb"(?:(?:train(?:ing)?|tuning|distillation|experiment|run) [a-z0-9_. -]{0,60}(?:complete|finished|done|ended|over|stopped)|(?:finish|complet)ed [a-z ]{0,20}train|done [a-z ]{0,20}train|"
    rb"(?:end(?: of)?|finish|stopping|stopped) (?:the )?training|(?:epochs|iterations|steps) reached|"
    rb"(?:finished|completed) [a-z ]{0,12}[0-9,]{1,12} (?:training )?(?:step|iter|epoch|update)|(?:training|running|run|elapsed) (?:time|took)|reached (?:max|the )|"
    rb"epochs completed in|(?:optimi[sz]ation|search) (?:is )?(?:complete|finished)|all [0-9]{0,6} ?(?:epochs|folds|trials|runs|seeds|experiments|stages|phases|models|trainings) [a-z ]{0,4}(?:complete|finished|done)|early[ _-]?stop|stopping_early|time for train|final (?:val|eval|test)[a-z]{0,7} (?:metrics|results)|(?:stopping|stopped|exiting|terminating|terminated) (?:training )?early|no improvement|patience [a-z0-9 ]{0,30}(?:exhausted|exceeded|reached)|max[_ ](?:epochs|steps|iters|iterations) |successfully (?:trained|fine)|(?:job|script|program) [a-z]{0,4} ?(?:finished|completed|ended) )",
    safety="A bare 'done' may end anything; conditions, questions and the end of one epoch are not the end of "
    "training.",
    matches=(
        "training finished after 400 steps",
        "[rank1] finished 30 iterations",
        "Training complete!",
        "2026-02-14 10:39:21,881 - INFO - Pretraining completed successfully!",
        "Fine-tuning finished.",
        "Training time 1:02:03",
        "Finished training in 812.4 seconds",
        "6 epochs completed in 2.309 hours.",
        "OPTIMIZATION COMPLETE",
        "INFO:root:Early stopping at epoch 8",
        "Early stopping triggered!",
        "No improvement for 10 epochs, stopping",
        "EarlyStopping: stop training at epoch 12",
        "Patience of 8 epochs exhausted",
        "Successfully trained the model",
        "[2026-10-25 00:25:04,364 main.py:157]: >> experiment AE_05 finished!",
        "Job finished at Tue Mar  4 10:22:11 UTC 2025",
        "[EARLY STOP] Validation did not improve for 10 epochs.",
        "End of training.",
        "2026-01-02 03:04:05,678 INFO: End of training. Time consumed: 2 days, 19:43:56",
        "Training has been completed",
        "Training stopped early at epoch 12",
        "Reached maximum number of epochs",
        "All 5 folds finished",
        "all stages complete; weights in out/weights",
        "Total running time:  7:20:14.828826",
        "Finished. Total elapsed time (h:m:s): 0:07:41",
        "stopping_early: wallclock_cap train_time:600039ms step:7430/20000",
        "Total time for train steps: 2411.84s",
        "Final validation metrics: {'val/loss': 0.1012}",
    ),
    avoids=(
        "training is not finished",
        "Will stop when training is complete",
        "Finished training epoch 3",
        "Training shutdown complete",
        "end training epoch 3",
        "Training starts over",
        "EarlyStopping counter: 3 out of 20",
        "no improvement for 3 epochs, will stop after 5 more",
        "early stopping patience: 5",
        "Use early stopping",
        "Will run all 5 folds",
        '        f"stopping_early: wallclock_cap train_time:{training_time_ms:.0f}ms "',
        "Computing the final validation metrics",
        "Current time: 2026-03-04 16:40:02. Total running time: 30s",
    ),
    caseless=True,
)
def _training_end(line: Line) -> Event | None:
    text = line.text
    if len(text) > 500 or _TRACEBACK_LINE.match(text) or _TRAINING_END.search(text) is None or _NOT_NOW.search(text):
        return None
    steps = _STEPS.search(text)
    return line.event(
        "training_end", status="success", steps=whole_number(steps[1]) if steps else None, seconds=_duration(text)
    )


_END_SENTENCES = {
    "Chinese": (
        "训练完成",
        "训练结束",
        "训练完毕",
        "完成训练",
        "訓練完成",
        "訓練結束",
        "训练已完成",
        "训练已结束",
        "训练全部完成",
    ),
    "Japanese": ("学習完了", "学習終了", "訓練完了", "トレーニング完了", "学習が完了", "学習が終了", "学習が終わり"),
    "Korean": (
        "학습 완료",
        "학습완료",
        "학습 종료",
        "훈련 완료",
        "학습이 완료",
        "훈련이 완료",
        "학습이 종료",
        "학습 끝",
        "학습이 끝",
        "훈련이 끝",
    ),
    "Russian": (
        "обучение завершено",
        "обучение закончено",
        "тренировка завершена",
        "обучение окончено",
        "конец обучения",
    ),
    "Spanish": (
        "entrenamiento completado",
        "entrenamiento finalizado",
        "entrenamiento terminado",
        "fin del entrenamiento",
    ),
    "French": (
        "entraînement terminé",
        "training terminé",
        "entrainement terminé",
        "apprentissage terminé",
        "fin de l'entraînement",
        "fin de l'apprentissage",
    ),
    "German": ("training abgeschlossen", "training beendet", "ende des trainings"),
    "Portuguese": (
        "treinamento concluído",
        "treinamento finalizado",
        "treino concluído",
        "fim do treinamento",
        "fim do treino",
    ),
    "Italian": ("addestramento completato", "addestramento terminato"),
}
"""What programs print in other languages when training has ended."""
_LOCALIZED_END = re.compile(
    "|".join(re.escape(word) for words in _END_SENTENCES.values() for word in words), re.IGNORECASE
)


@PARSER.pattern(
    b"(?:"
    + b"|".join(sorted({form for words in _END_SENTENCES.values() for word in words for form in byte_regexes(word)}))
    + b")",
    safety="Only the sentence itself, at the end of its line, not a longer one about the future.",
    matches=(
        "2026-04-13 16:59:26,834 - INFO - 训练完成！",
        "学習が完了しました。",
        "训练结束 | 1500 步 | 210.4 min | 8.4 s/it",
        "=== Entrenamiento finalizado ===",
        "Training abgeschlossen.",
    ),
    avoids=(
        "训练完成后将保存模型到 output 目录, 请等待",
        "Wenn das Training abgeschlossen ist, folgt die Auswertung des Modells",
    ),
    caseless=True,
)
def _localized_end(line: Line) -> Event | None:
    match = _LOCALIZED_END.search(line.text) if len(line.text) <= 200 else None
    if match is None or sum(map(str.isalnum, _FIGURES.split(line.text[match.end() :])[0])) > MAX_INFLECTION_CHARS:
        return None
    return line.event("training_end", status="success")


@PARSER.pattern(
    rb"(?:done|finish|complete|time|elapsed|runtime|duration|final|overall|test|saved|saving|export|written|wrote)",
    safety="A bare 'done' or a final figure may end anything: only the log's last line counts, what is not printed again and again, "
    "and only if the log shows a training.",
    matches=(
        "########## Done! ##########",
        "--- MARATHON COMPLETE ---",
        "All done.\n\nreal\t5m3.2s\nuser\t4m1.0s\nsys\t0m2.1s",
        "Total time: 3:22:11",
        "Elapsed: 7684.6s",
        "2026-01-02 03:04:05,678 - root - INFO - Completed in: 0 h 3 min 41 s",
        "Final test accuracy: 87.3%",
        "Done. Best val 0.46711 -> out/clone.pt",
        "Model trained and saved to model/emotions.pkl.",
    ),
    avoids=(
        "Preparing data... done, 12 files",
        "------validation complete------",
        "Loading the dataset done",
        "Epoch 3, loss 0.41\nDone!\nEpoch 4, loss 0.39",
        "Epoch 3, loss 0.41\nDone!\nKilled",
        "epoch 1\nTest accuracy: 0.31\nepoch 2\nTest accuracy: 0.42",
        "Time per step: 0.3 s",
        "Saving model at epoch 3",
    ),
    caseless=True,
)
def _last_line(line: Line) -> Event | None:
    if not line.is_near_end(MAX_EPILOGUE_BYTES):
        return None
    text = line.text
    is_bare = _BARE_END.match(text) is not None
    is_save = not is_bare and _SAVED_MODEL.search(text) is not None
    if len(text) > 160 or not (is_bare or is_save or _CLOSING_REPORT.match(text)):
        return None
    if any(other.text.strip() and not _EPILOGUE.match(other.text) for other in line.following(MAX_EPILOGUE_LINES)):
        return None
    if not is_bare and (_NOT_LAST.search(text) or _NOT_NOW.search(text) or _stands_above(line)):
        return None
    if _is_soon_after_traceback(line):
        return None  # what the job script prints after the crash
    sums_up = None if is_bare or is_save else True
    return line.event("training_end", status="success", bare=True, by_save=is_save or None, sums_up=sums_up)


def _is_soon_after_traceback(line: Line) -> bool:
    """Whether a traceback ends in one of the few lines above, or would go on to this one."""
    end: int | None = line.notes("python").get("end")
    if end is None:
        return False
    return end >= line.offset or any(other.offset == end for other in line.preceding(MAX_LINES_AFTER_TRACEBACK))


def _stands_above(line: Line) -> bool:
    """Whether a line above differs from this one only in its figures."""
    words = _LETTERS.findall(line.text)
    return any(_LETTERS.findall(other.text) == words for other in line.preceding(MAX_LINES_COMPARED))


@PARSER.pattern(
    rb"(?:Evaluation|Inference|Test):? Total time: |evaluation results for [^\n\r]{1,80} in csv format|"
    rb"result file saved to |evaluation (?:is )?(?:complete|finished|done)",
    r"\A(?:[^'\"]{0,80}[\s:\]])?(?i:(?:evaluation|inference|test):? total time: \d|evaluation results for \S{1,80} in csv format"
    r"|result file saved to \S|(?:the )?evaluation (?:is |was |has )?(?:been )?(?:completed?|finished|done)\b(?! for))",
    safety="An evaluation may be one of many: it counts only among the last lines of the log.",
    matches=(
        "Evaluation Total time: 1:52:40 (3.3685 s / it)",
        "2026-01-02 02:06:10,745 [INFO] result file saved to out/result/test_best.json",
        "[01/02 18:41:59 d2.engine.defaults]: Evaluation results for pets_test in csv format:",
        "Evaluation finished.",
    ),
    avoids=(
        "Evaluation is done every epoch" + "\nepoch 1 loss 0.5" * 20,
        "Test: Total time: 0:00:14 (0.18 s / it)" + "\nEpoch: [3]  [1/9]  loss: 0.4" * 20,
        "Total evaluation time: unknown",
    ),
    caseless=True,
)
def _evaluation_end(line: Line, _: re.Match[str]) -> Event | None:
    below = sum(1 for other in line.following(MAX_LINES_AFTER_EVALUATION + 1) if other.text.strip())
    if below > MAX_LINES_AFTER_EVALUATION:
        return None
    return line.event("training_end", status="success", evaluation=True)


@PARSER.pattern(
    rb"(?:Evaluation|Inference|Test|Val(?:id(?:ation)?)?):? {1,3}\[ {0,6}[0-9]{1,9}/[0-9]{1,9}\] {1,3}eta: ",
    r"(?:Evaluation|Inference|Test|Val(?:id(?:ation)?)?):? {1,3}\[ {0,6}(\d{1,9})/(\d{1,9})\] {1,3}eta: (?:(\d{1,3}) days?, )?(\d{1,3}):(\d\d):(\d\d)",
    safety="The meters of torchvision and LAVIS, whose words say that it is an evaluation.",
    matches=("Evaluation  [1610/3000]  eta: 2:25:15    time: 5.5618  data: 0.3705  max mem: 13155",),
    avoids=("Epoch: [3]  [1610/3000]  eta: 2:25:15  loss: 0.4",),
)
def _evaluation_progress(line: Line, match: re.Match[str]) -> Event:
    batch, batches, days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    left_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return line.event("evaluation_progress", batch=batch, batches=batches, left_s=float(left_s))


def _duration(text: str) -> float | None:
    """The seconds that a sentence gives, as a clock or a number."""
    clock = _CLOCK.search(text)
    if clock is not None:
        return int(clock[1] or 0) * 86_400 + int(clock[2]) * 3_600 + int(clock[3]) * 60 + float(clock[4])
    seconds = _SECONDS.search(text)
    return None if seconds is None else number(seconds[1])


@PARSER.pattern(
    rb"(?:(?:nan|inf|finite|not a number)[^\n\r]{0,80} (?:stop|end|abort|exit|terminat|quit|halt)|diverged with loss = nan)",
    safety="A non-finite loss alone, or a step skipped for it, ends nothing.",
    matches=(
        "Loss is nan, stopping training",
        "WARNING: non-finite loss, ending training  tensor([nan, 1.2, 0.3, nan])",
        "ERROR:tensorflow:Model diverged with loss = NaN.",
    ),
    avoids=("Loss is nan, skipping this step", "infinite stream ends here"),
    caseless=True,
)
def _stop_at_nan(line: Line) -> Event | None:
    text = line.text
    if len(text) > 500 or _TRACEBACK_LINE.match(text) or _STOP_AT_NAN.search(text) is None:
        return None
    return line.event("training_end", status="aborted", reason="not_finite")


@PARSER.pattern(
    rb"(?:start(?:ing|ed)?|begin(?:ning)?|entering) [a-z ]{0,30}training",
    safety="A start in the future or under a condition does not count.",
    matches=("Start training", "2024-01-01 10:00:00 INFO Starting the training loop"),
    avoids=("Before starting training, set the environment",),
    caseless=True,
)
def _training_start(line: Line) -> Event | None:
    text = line.text
    if len(text) > 300 or _TRACEBACK_LINE.match(text) or _TRAINING_START.search(text) is None or _NOT_NOW.search(text):
        return None
    return line.event("training_start")
