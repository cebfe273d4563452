"""Custom training loops: any line that names a step or an epoch and a training loss.

``step 10 loss 3.42``, ``iter 2/40 | loss 5.7 | lr 5e-3``, ``Epoch: [0][ 50/500] Loss 3.1 (3.4)``, ``{"step": 1, "loss":
2.0}``, ``level=info step=1 loss=2``, ``[Loss] 4.1 | [step] 89``, ``iter = 20`` with ``loss = 2.1`` on a line below, and
tables of comma-separated figures under a header.
"""

from __future__ import annotations

from dataclasses import replace

from trackside.logs.json_records import json_points
from trackside.logs.line import Line
from trackside.logs.localized import prefilter
from trackside.logs.loss_lines import FALLBACK_ID, ID, line_points, localized_points
from trackside.logs.pattern import Parser
from trackside.logs.positions import remember_position
from trackside.logs.split_losses import split_loss
from trackside.logs.step_tables import table_points
from trackside.model import Event

PARSER = Parser(ID, "custom training loops", "framework", generic=True, precedence=630, fallback_ids=(FALLBACK_ID,))


PARSER.pattern(
    rb"(?:(?:step|iter|iteration|epoch)[\"']?(?:[,;\t]|  | ?\|| ?\xe2\x94)[^\n\r]{0,200}(?:loss|cost|total)|loss(?:[,;\t]|  | ?\|)[^\n\r]{0,300}(?:step|iter|epoch)|,loss,[^\n\r]{0,200}val_loss)",
    safety="A header whose rows below hold figures in as many columns.",
    matches=(
        "step,loss,lr\n1,6.31,0.001\n2,5.90,0.001",
        ",loss,accuracy,val_loss\n0,6.31,0.1,6.4\n1,5.90,0.2,6.1",
        "epoch     train_loss  valid_loss  accuracy\n0         0.512300    0.401200    0.910000",
        "Step\tTraining Loss\n10\t1.8123\n20\t1.5012",
        "12:44:48 [INFO]:    Epoch       Batch       box        id     total\n12:44:55 [INFO]:    14/29       40/165    0.0119   5.81       -11",
        "class_loss    disc_loss     env0_in_acc   epoch         step          step_time    \n"
        "0.6594799161  1.1082708836  0.8270022883  0.0000000000  300           1.7996511861 ",
        "        Train | Valid\nEpoch |  Loss |  Loss | Time\n\n    3\u2502  0.412\u2502  0.388\u2502  1.93",
        "|   epoch |   train_loss |   val_loss |\n|--------:|-------------:|-----------:|\n|       1 |       0.9120 |     0.8804 |",
        "dset  epoch      mcost      mtime\ntrn   94        4.3732   792.4505\ndev   94        1.5318    48.2489",
    ),
    avoids=("step,loss,lr are logged to a file", "Epoch  loss  total\nsaved the table above\n"),
    caseless=True,
)(table_points)


PARSER.pattern(
    rb"(?:[lL](?:oss|OSS)[a-zA-Z_. ]{0,20}\t|E {2,6}# {2,12}LOSS )",
    safety="A header whose rows hold as many figures; without a position, several rows.",
    matches=(
        "Learning Rate\tTrain Loss\tValid Loss\tTrain Acc.\t\n0.1\t2.31\t2.20\t11.2\t\n0.1\t2.11\t2.01\t19.5\t\n0.1\t1.97\t1.90\t25.1\t",
        "Epoch\tTrain_Loss\tVal_mIoU\t\n1.000000\t0.431\t0.693\t\n2.000000\t0.221\t0.734\t",
        "E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  SCORE\n---  ------  ------------  --------  ------  ------\n  0       0         12.03     86.96    0.00    0.00",
    ),
    avoids=(
        "Train Loss\tTrain Acc.\n0.31\t92.1",
        "loss\t0.31\tacc\t0.92",
        "the loss\tis printed below\n1\t2\n3\t4\n5\t6",
    ),
)(table_points)
PARSER.pattern(
    rb"loss[a-z_]{0,20}\": ?\"?-?[0-9nNI]",
    safety="One JSON object is the whole line, or all that follows a label; it names a step or an epoch.",
    matches=(
        '{"train_lr": 0.0002, "train_class_error": 0.03, "train_loss": 17.2, "train_loss_bbox_0": 1.1, "epoch": 4, "n_parameters": 9}',
        '{"train_lr": "0.000", "train_loss": "0.136"}',
        'json_stats: {"_type": "train_epoch", "dt": 0.4, "epoch": "3/100", "loss": 2.5}',
    ),
    avoids=('{"loss": 17.2, "lr": 0.1, "model": "a"}', '{"train_loss": 17.2, "model": "a"}', '{"loss": 1.2, "epoch": '),
)(json_points)
PARSER.pattern(
    rb"(?:(?:epoch|\bep|iter|step)[^\n\r]{1,120}[ \t](?:cost|total|cross_entropy)|train(?:ing)?[ _]cost)[=:, ]{1,4}-?[0-9]",
    safety="A cost that is time has a unit or another name; a total is a loss only if it has a fraction.",
    matches=(
        "Pre-training layer final, epoch 85, cost  0.238637797038",
        "[epoch: 51/200, iter: 75/177] total: 0.669316 ",
        "[phase 2] ep=   20  total=1.574e+01  PDE=0.000e+00 (w=1.000)",
        "Epoch: [0][ 10/100]\tTime 11.808 (11.953)\trecon 1.691 (1.417)\tcross_entropy 29.317 (29.780)\tad 35.081 (38.163)",
        "global step 1400 learning rate 0.1000\n  train perplexity 15.72\n  train cost 2.7552474976",
    ),
    avoids=(
        "epoch 3, time cost: 2.68s",
        "epoch 3 cost 12.4 s",
        "Epoch 3 Train, mae: 84.7, Cost: 712.5 sec",
        "step 10, total: 5000",
    ),
    caseless=True,
)(line_points)
PARSER.pattern(
    prefilter(),
    safety="Read as the same line in English; a loss behind another word is a part of one.",
    matches=(
        "迭代 120/800, 总损失: 0.3712, 边界损失: 0.0031, 数据损失: 0.3681, LR: 7.1e-06",
        "第 3 轮 训练损失: 0.412 验证损失: 0.455",
        "Época 4/20 - Pérdida de entrenamiento: 0.3412, Pérdida de validación: 0.4011",
        "에폭 3/10, 학습 손실: 0.512, 검증 손실: 0.612",
        "Эпоха 3/10, Потери: 0.512",
        "エポック 3/10 損失: 0.512",
        "Epoche 4/20, Verlust: 0.512",
    ),
    avoids=("验证损失: 0.455", "最佳损失: 0.455 (第 3 轮)", "损失函数 2: 交叉熵"),
    caseless=True,
)(localized_points)
PARSER.pattern(
    rb"(?:(?:x-?ent|cross[-_ ]?entropy|\b(?:b?ce|nll|recon(?:struction)?|objective|l)|_nll|trl|l_[a-z]{2,12}|train(?:ing)?[-_ /](?:r?mse|mae))[:=] {0,3}-?|(?:xent|nll|train(?:ing)? r?mse) )[0-9]{1,9}[.e]",
    safety="The name of a loss function, with decimals, on a line that names a position, in a log that names no loss.",
    matches=(
        "Epoch: [1][20/275]\tTime 0.109 (0.164)\tXent 4.6453 (5.1278)\tHtri 0.4972 (0.6617)",
        "[Epoch 3][Batch 50], Speed: 0.162 samples/sec, CrossEntropy=1.56e-02, SmoothL1=1.68e-03",
        "Epoch[0] Train-CrossEntropy=1.550426",
        "Epoch [2/100] Recon: 0.0384 | KL: 8.0062",
        "Epoch 2: train MSE 0.0384, test MSE 0.0411",
        "* Ep 1/80 lr=6.00e-04 trL=0.0220 trA=0.767 vlL=0.0067 vlA=0.946",
        "[ep 0 step    50 t=     49s vram= 7298MB] L=0.0353  D=0.0284  PSNR=15.47",
        "Epoch 3\n  Train - CE: 0.0952, KL: 2.6460",
        "****EPOCH 3****\n[INFO] Step 00095700 L_out=1.292 Acc=0.94 --- 897.03 ms/batch",
    ),
    avoids=(
        "Train - CE: 0.0952, KL: 2.6460",
        "CE: 12 cases at epoch 3",
    ),
    caseless=True,
)(line_points)
PARSER.pattern(
    rb"iters: [0-9]{1,9}, time: [0-9.]{1,9}, data: [0-9.]{1,9}[^\n\r]{0,40}: ?-?[0-9]",
    safety="Image translation with CycleGAN and pix2pix, whose losses have names of their own.",
    matches=(
        "(epoch: 1, iters: 100, time: 0.254, data: 0.192) G_GAN: 0.712 G_L1: 12.301 D_real: 0.612 D_fake: 0.511",
        "(epoch: 1, iters: 100, time: 0.254, data: 0.192) D_A: 0.712 G_A: 1.301 cycle_A: 0.612 idt_A: 0.511",
    ),
    avoids=("(epoch: 1, iters: 100, time: 0.254, data: 0.192)",),
)(line_points)
PARSER.pattern(
    rb"[lL](?:oss|OSS)[^\n\r0-9]{0,24}[0-9nNiI]",
    safety="Settings (loss_scale, loss_weight, a loss without step or epoch), echoed arguments, code in tracebacks, "
    "best or final losses and validation losses are not logged steps.",
    matches=(
        "step 10 loss 3.4290",
        "step 10 → loss → 3.4290",
        "训练次数：1Loss:0.9131239652633667",
        "Average loss at step (100/20001): 0.450832",
        "Training [=====       ] 34.0% 20000/58874 | 4.62 it/s | ETA: 8413.2 s | loss=3.399266 | validation_loss=3.540929",
        "Epoch 4: loss 1,6263",
        "Epoch: [0] Step: 10 Loss: 3.3378",
        "[2026-11-21 08:28:09,239][INFO][rank0] iter 2/40 | loss 5.7066 | lr 5.00e-03 | data 1046ms compute 116ms allreduce 71ms",
        "loss: 6.516232, global_step: 1",
        '{"step": 10, "loss": 2.31, "lr": 0.0003}',
        "level=info msg=train step=10 total=100 loss=2.31",
        "| E6 iter[ 14/ 15] | [Loss] nan | [step]   104 | [url] none",
        "step:12/5100 train_loss:9.4594 train_time:3176ms step_avg:nanms",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.2831",
        "Epoch [1/10], Step [100/600], Loss: 0.3412",
        "[1,  2000] loss: 2.187",
        "step 5 loss nan lr 3.00e+03 (143.6 ms)",
        "Train: 0 [  50/1251 (  4%)]  Loss: 6.931 (6.95)  Time: 1.842s,  555.92/s  LR: 1.000e-01  Data: 1.611 (1.655)",
        "| epoch   1 |   200/ 2983 batches | lr 5.00 | ms/batch 12.1 | loss  8.12 | ppl  3361",
        "step    7/19560 | loss 10.913 (+nanz)| norm 15.21 (+nanz)| lr 6.0e-06 | 850.4 ms",
        "iteration:  4875/500000   0% | elapsed time: 19:29:30 | per_token_loss: 3.3900 | lr: 9.9E-06 | z_loss: 26.2",
        "Epoch 3 - val_loss: 0.412",
        "EPOCH 1:\nLOSS train 0.3451 valid 0.4511",
        "[Epoch 0/200] [Batch 5/938] [D loss: 0.693147] [G loss: 0.7421]",
        "Ep 1: Loss:2.9429 | P:0.31 F1:0.45  New Best!",
        "iter 10000 || Loss: 3.7949 || Saving state, iter: 10000",
        "iter = 21580\n\tloss = 0.484435, accuracy (cur) = 0.781250",
        "[03.24.23|14:21:45] Training epoch: 55\n[03.24.23|14:22:06] \tmean_loss: 1.0710372626781464",
        "num of updates: 26000\nret loss: 0.98657\naction loss: 0.03781",
        "[INFO] Start training epoch 5, 3511 iters per inner epoch.\n[INFO] Averaged stats: lr: 0.0000  loss: 0.2588",
        "[Epoch 158] train=0.075812 val=0.963900 loss=0.766110 time: 114.246979",
        "INFO [Train] 48 epoch. Loss: 87.07872",
        "[Training] 83/160 [==============>...............] - ETA: 1:48  [ loss=3.6367 ]",
        "Train Epoch: 50 [79/287 (27%)] Loss: 8.961083: : 79it [00:18,  4.26it/s]",
        "Train loss: tensor([1.1266], device='cuda:0')\tstep: 104010",
        "Loss for Iter 51: 0.398579, acc = 0.260000",
        "Average loss at step  2000: 113.4",
        "[ (3 ) Loss:  0.358, train_Acc: 0.98647, valid_Loss: 0.364",
        "Epoch[38] Batch [0-20]\tSpeed: 25.55 samples/sec\tM0_RPNAcc=0.99\tM0_BboxLoss=0.054016",
        "======== Epoch 2 / 4 ========\n  Average training loss: 0.29",
        "step:26K smpl:819K ep:2K epch:46.73 loss:0.031 grdn:4.522",
        "('Epoch: ', 4)\n('gen Loss: ', [array(0.9504, dtype=float32), array(0.11, dtype=float32)], '\t disc loss', [array(0.54)])",
        "epoch: 1/9, train_loss: 2.3epoch: 2/9, train_loss: 2.2epoch: 3/9, train_loss: 2.1",
        "[TRAIN] Epoch[3](21/900); Loss: 0.0412; Backpropagation: 0.31 sec; Batch: 1.2 sec",
        "Train:    1/40 (  2%) [  50/310 ( 16%)]  Loss: 1.21 (1.34)  LR: 1.1e-03  Acc_iter 50",
        "[10:11:53] step 340/2000 | loss 0.0148 | 3.4 s/it | peak 31.2 GB",
        "|   49000/  100000 steps| 14065.17 tokens/s| loss    2.15| acc: 0.566",
        "epoch 0: train loss :: 1.696, train acc :: 0.412, dev acc :: 0.391",
        "[04/20 20:25:18 fastreid.utils.events]:  eta: 0:00:00  epoch/iter: 119/24239  total_loss: 1.04  loss_cls: 1.039",
        "E2 B36/180 | Loss:0.3104 Main:0.3101 | 5.4s",
        "10:12:40 INFO: Ep7 TrainLoss 1.2044 steps=90",
        "[runner][INFO] - Train, Round 12 : loss => 0.3117, accuracy: 0.88",
        "INFO - Starting epoch 4.\nINFO - Subject 11, Loss: 31.204",
        "Epoch [3] Loss: 1.203\nEpoch [4]\n[Train set] Loss: 1.101, Accuracy: 310/500 (62.00%)",
        "Epoch 29 | Train: 2.6564 | Test: 2.7584\nEpoch 30 | Train: 2.6501 | Test: 2.6616",
        "Epoch: 2/200 Train accuracy: 2.7e-01 Validation accuracy: 3.1e-01 Loss 1.76e-02 Time taken: 1.72 seconds",
        "2026-05-04 17:49:21,657 INFO Epoch 2\n2026-05-04 17:50:11,107 INFO   Training loss: 3.884",
    ),
    avoids=(
        "`loss_type=None` was set in the config but it is unrecognized.",
        "loss: 0.1",
        "loss_gamma: 2.0\nloss_gamma: 2.0\nloss_gamma: 2.0",
        "  loss_scale_window ............... 1000",
        "Namespace(epochs=3, loss=0.5, step=10)",
        "Saved checkpoint at step 100 (loss 2.31)",
        "Epoch 3: best loss 0.31",
        "prediction_loss_only=False, max_steps=100",
        '  File "train.py", line 100, in loss',
        "world size 2, steps 100, lr 0.003",
        "bfc_allocator.cc:1046] InUse at 7f5c66fee400 of size 256 by op edge_loss/concat action_count 47463 step 0 next 914",
    ),
)(line_points)

PARSER.pattern(
    rb"tr(?:(?:ai)?n(?:ing)?)?[\"'\]]?(?: {0,2}[:=|] {0,3}| {1,3})-?(?:[0-9]{1,9}[.e][0-9]|nan|inf)",
    safety="Only beside another split or behind a bare step, and only if the figures fall as scores do not.",
    matches=(
        "5 train 9.31\n6 train 9.12\n7 train 8.94\n8 train 8.73\n9 train 8.71",
        "Loss epoch 4 | train 0.41 | test 0.47",
        "[fit] epoch  1/40  train=9.1  heldout=9.4\n[fit] epoch  2/40  train=8.1  heldout=8.4\n[fit] epoch  3/40  train=7.1  heldout=7.4\n[fit] epoch  4/40  train=6.1  heldout=6.4\n[fit] epoch  5/40  train=5.1  heldout=5.4",
        "Ep 1 | tr 1.93 | va 2.21\nEp 2 | tr 1.91 | va 2.12\nEp 3 | tr 1.84 | va 2.14\nEp 4 | tr 1.80 | va 2.10\nEp 5 | tr 1.76 | va 2.08",
        "Epoch 1 train 1.93 val 2.21\nEpoch 2 train 1.91 val 2.1\nEpoch 3 train 1.84 val 2.1\nEpoch 4 train 1.8 val 2.1\nEpoch 5 train 1.76 val 2.08",
        "Ép 1 | train 1.93 | val 2.21\nÉp 2 | train 1.91 | val 2.12\nÉp 3 | train 1.84 | val 2.14\nÉp 4 | train 1.80 | val 2.10\nÉp 5 | train 1.76 | val 2.08",
        "Epoch: 1\nTraining: 4.52\nEpoch: 2\nTraining: 4.31\nEpoch: 3\nTraining: 4.20\nEpoch: 4\nTraining: 4.11\nEpoch: 5\nTraining: 4.07",
    ),
    avoids=(
        "1 train 0.52\n2 train 0.61\n3 train 0.58\n4 train 0.70\n5 train 0.74\n6 train 0.71\n7 train 0.70\n8 train 0.69",
        "split train=0.8 val=0.1 test=0.1",
        "Epoch 3 train acc 0.93 test 0.90",
    ),
    caseless=True,
)(split_loss)


@PARSER.pattern(
    rb"(?:(?:epoch|iter|step|update|round|batch|episode)[a-z]{0,6}[^\n\r0-9a-z]{0,6}[0-9]|epoch[^\n\r0-9]{0,9}[0-9])",
    safety="A position is done when the next one is printed; the points count only if the log prints no loss.",
    matches=(
        "Epoch 499 out of 500\nEpoch 500 out of 500",
        "Training epoch: 55\nTraining epoch: 56",
        "Finished epoch 006  in 00: 06: 19\nFinished epoch 007  in 00: 06: 24\nFinished epoch 008  in 00: 06: 22",
        "('Epoch: ', 4)\n('Epoch: ', 5)",
    ),
    avoids=(
        "iter = 21580",
        "Training epoch: 55",
        "Eval epoch: 55\nEval epoch: 56",
        "max epoch: 100\nwarmup epoch: 5",
        "load weights of epoch 7\nload weights of epoch 8",
        "Step 1. Get the data\nStep 2. Train the model",
    ),
    caseless=True,
)
def _position_line(line: Line) -> Event | None:
    finished = remember_position(line)
    if finished is None or finished.counts_rounds:
        return None
    position = finished.record_position
    event = line.event(
        "progress",
        step=position.step,
        epoch=position.epoch,
        epoch_steps=position.epoch_steps,
        total_steps=position.total,
        framework="custom",
        text=finished.text,
    )
    at = replace(event.at, line=finished.line, offset=finished.offset)
    return replace(event, parser=FALLBACK_ID, at=at)
