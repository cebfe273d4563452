"""Logs of several lines and what must be read of them: (name, plane, text, expected events).

An expected event is (kind, role, fields and rank/node that must be so). Events not listed must not come,
unless their kind is in IGNORED.
"""

from __future__ import annotations

from typing import Any

Expected = tuple[str, str, dict[str, Any]]
Case = tuple[str, str, str, list[Expected]]

IGNORED = {"log_activity", "exception", "host", "python_fatal"}

SUMMARY = """\
Sending process 101 closing signal SIGTERM
failed (exitcode: -9) local_rank: 1 (pid: 102) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-02_10:00:05
  host      : n1
  rank      : 4 (local_rank: 0)
  exitcode  : -15 (pid: 101)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 101
[2]:
  time      : 2026-01-02_10:00:05
  host      : n1
  rank      : 6 (local_rank: 2)
  exitcode  : 1 (pid: 103)
  error_file: /tmp/e/error.json
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_10:00:04
  host      : n1
  rank      : 5 (local_rank: 1)
  exitcode  : -9 (pid: 102)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 102
============================================================
"""

CASES: list[Case] = [
    (
        "torchrun-summary",
        "log",
        SUMMARY,
        [
            ("signal_received", "teardown", {"pid": 101, "signal": 15}),
            ("process_exit", "root", {"signal": 9, "pid": 102, "source": "torchrun"}),
            ("launcher_failure", "teardown", {"global_rank": 4, "first": False, "signal": 15, "rank": 4}),
            ("launcher_failure", "cascade", {"global_rank": 6, "exit_code": 1, "error_file": "/tmp/e/error.json"}),
            (
                "launcher_failure",
                "root",
                {
                    "global_rank": 5,
                    "local_rank": 1,
                    "signal_name": "SIGKILL",
                    "first": True,
                    "node": "n1",
                    "time": 1767348004.0,
                },
            ),
        ],
    ),
    (
        "torchrun-summary-old-format",
        "log",
        "***************************************\n             train.py FAILED\n"
        "=======================================\nRoot Cause:\n[0]:\n  time: 2021-07-07_13:21:31\n"
        "  rank: 2 (local_rank: 2)\n  exitcode: -11 (pid: 1234)\n  error_file: <N/A>\n"
        '  msg: "Signal 11 (SIGSEGV) received by PID 1234"\n=======================================\n'
        "Other Failures:\n  <NO_OTHER_FAILURES>\n***************************************\n",
        [("launcher_failure", "root", {"global_rank": 2, "signal": 11, "first": True})],
    ),
    (
        "torchrun-two-nodes-interleaved",
        "log",
        "".join(
            f"{label}: {line}\n"
            for label, line in [
                (0, "Root Cause (first observed failure):"),
                (1, "Root Cause (first observed failure):"),
                (0, "[0]:"),
                (1, "[0]:"),
                (1, "  time      : 2026-01-02_10:00:09"),
                (0, "  time      : 2026-01-02_10:00:04"),
                (0, "  host      : n1"),
                (1, "  host      : n2"),
                (0, "  rank      : 1 (local_rank: 1)"),
                (1, "  rank      : 3 (local_rank: 1)"),
                (1, "  exitcode  : 1 (pid: 20)"),
                (0, "  exitcode  : -7 (pid: 10)"),
            ]
        ),
        [
            ("launcher_failure", "root", {"global_rank": 1, "host": "n1", "signal": 7, "first": True}),
            ("launcher_failure", "confirmation", {"global_rank": 3, "host": "n2", "exit_code": 1, "first": True}),
        ],
    ),
    (
        "abort-of-the-watchdog-is-a-cascade",
        "log",
        "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600042 milliseconds before timing out.\n"
        "[rank0]:[E ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 0] Timeout at NCCL work: 7, last enqueued NCCL "
        "work: 9, last completed NCCL work: 6.\n"
        "[rank0]: what():  [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600042 milliseconds before timing out.\n"
        "[rank2]:[E ProcessGroupNCCL.cpp:1] [PG 0 (default_pg) Rank 2] Received a dump signal due to a collective timeout "
        "from rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 6, last completed NCCL work: 6.\n"
        "failed (exitcode: -6) local_rank: 0 (pid: 55) of binary: python\n",
        [
            (
                "collective_timeout",
                "cascade",
                {
                    "rank": 0,
                    "op": "ALLREDUCE",
                    "seq": 7,
                    "timeout_s": 600.0,
                    "elapsed_s": 600.042,
                    "last_enqueued": 9,
                    "last_completed": 6,
                },
            ),
            (
                "collective_state",
                "cascade",
                {"rank": 0, "last_enqueued": 9, "last_completed": 6, "seq": 7, "group": "default_pg"},
            ),
            ("collective_state", "cascade", {"rank": 2, "last_enqueued": 6, "last_completed": 6}),
            ("process_exit", "cascade", {"signal": 6}),
        ],
    ),
    (
        "time-limit-makes-later-deaths-teardown",
        "log",
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T10:00:00 DUE TO TIME LIMIT ***\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\nsrun: error: n1: task 0: Killed\n",
        [
            ("scheduler_notice", "root", {"reason": "time_limit", "job": "7", "node": "n1", "time": 1767348000.0}),
            ("scheduler_notice", "teardown", {"reason": "step_ended"}),
            ("process_exit", "teardown", {"signal": 9, "task": "0"}),
        ],
    ),
    (
        "srun-ends-a-step-after-a-task-aborted",
        "log",
        "srun: error: n1: task 1: Aborted (core dumped)\nsrun: Terminating StepId=8.0\n"
        "slurmstepd-n1: error: *** STEP 8.0 ON n1 CANCELLED AT 2026-01-02T10:00:00 ***\n"
        "srun: error: n2: tasks 2-3: Terminated\nsrun: Force Terminated StepId=8.0\n",
        [
            ("process_exit", "root", {"signal": 6, "core": True, "node": "n1"}),
            ("scheduler_notice", "teardown", {"reason": "step_ended", "step": "8.0"}),
            ("scheduler_notice", "teardown", {"reason": "cancelled", "step": "8.0"}),
            ("process_exit", "teardown", {"signal": 15, "task": "2-3", "node": "n2"}),
            ("scheduler_notice", "teardown", {"reason": "step_ended"}),
        ],
    ),
    (
        "step-cancel-before-the-word-preemption",
        "log",
        "slurmstepd-g1: error: *** STEP 35.0 ON g1 CANCELLED AT 2026-01-02T10:00:00 ***\nrank 1 caught TERM\n"
        "slurmstepd-g1: error: *** JOB 35 ON g1 CANCELLED AT 2026-01-02T10:00:10 DUE TO PREEMPTION ***\n",
        [
            ("scheduler_notice", "teardown", {"reason": "cancelled"}),
            ("signal_received", "teardown", {"signal": 15, "by": "job"}),
            ("scheduler_notice", "root", {"reason": "preemption", "job": "35"}),
        ],
    ),
    (
        "scancel",
        "log",
        "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-02T10:00:00 ***\n",
        [("scheduler_notice", "root", {"reason": "cancelled", "job": "12"})],
    ),
    (
        "slurm-out-of-memory",
        "log",
        "slurmstepd-g2: error: Detected 1 oom_kill event in StepId=10.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: g2: task 2: Out Of Memory\n",
        [
            ("oom_kill", "root", {"scope": "slurm", "step": "10.0", "count": 1}),
            ("oom_kill", "root", {"scope": "slurm", "node": "g2"}),
            ("process_exit", "root", {"signal": 9, "task": "2"}),
        ],
    ),
    (
        "deepspeed-launcher",
        "log",
        "[2026-01-02 10:00:00,000] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 11\n"
        "[2026-01-02 10:00:01,000] [INFO] [launch.py:316:sigkill_handler] Killing subprocess 12\n"
        "[2026-01-02 10:00:01,000] [ERROR] [launch.py:322:sigkill_handler] ['python', 't.py', '--local_rank=1'] exits with return code = -11\n",
        [
            ("signal_received", "teardown", {"pid": 11}),
            ("signal_received", "teardown", {"pid": 12}),
            ("launcher_failure", "root", {"launcher": "deepspeed", "local_rank": 1, "signal": 11}),
        ],
    ),
    (
        "mpirun-wrapped-line",
        "log",
        "mpirun noticed that process rank 3 with PID 0 on node n2\nexited on signal 9 (Killed).\n",
        [],
    ),
    (
        "mpirun-exit-code",
        "log",
        "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated.\n\n"
        "  Process name: [[23456,1],3]\n  Exit code:    2\n",
        [("launcher_failure", "confirmation", {"global_rank": 3, "exit_code": 2, "launcher": "mpirun"})],
    ),
    (
        "hydra-box",
        "log",
        "===================\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK 1 PID 77 RUNNING AT n4\n"
        "=   KILLED BY SIGNAL: 11 (Segmentation fault)\n===================\n",
        [("launcher_failure", "root", {"global_rank": 1, "pid": 77, "signal": 11, "host": "n4"})],
    ),
    (
        "legacy-launch",
        "log",
        '  File "/opt/lib/python3.7/site-packages/torch/distributed/launch.py", line 263, in <module>\n    main()\n'
        "subprocess.CalledProcessError: Command '['/opt/bin/python3', '-u', 'train.py', '--local_rank=3']' died with <Signals.SIGKILL: 9>.\n",
        [
            (
                "launcher_failure",
                "root",
                {"launcher": "torch.distributed.launch", "local_rank": 3, "signal": 9},
            )
        ],
    ),
    (
        "nccl-remote-error",
        "log",
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, remote process "
        "exited or there was a network error, NCCL version 2.18.1\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nNET/IB : Got completion from peer 10.0.0.2<39123> with error 12, opcode 0, len 0, vendor err 129\n",
        [
            ("nccl_error", "cascade", {"code": "ncclRemoteError"}),
            ("nccl_error", "cascade", {"code": "ncclRemoteError"}),
        ],
    ),
    (
        "nccl-shutdown-noise",
        "log",
        "n1:1:2 [7] proxy.cc:1458 NCCL WARN [Service thread] Accept failed Success\n"
        "n1:1:2 [7] proxy.cc:1 NCCL WARN [Proxy Service 3] Failed to execute operation Close from rank 3, retcode 3\n",
        [("nccl_warn", "fact", {}), ("nccl_warn", "fact", {})],
    ),
    (
        "monitored-barrier",
        "log",
        "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms\n",
        [("collective_timeout", "cascade", {"missing_ranks": "1,3", "timeout_s": 30.0, "op": "BARRIER", "rank": 0})],
    ),
    (
        "harmless-hostname-warning",
        "log",
        "[W1121 08:45:10.791279667 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n",
        [],
    ),
    (
        "not-initialised-is-code-not-rendezvous",
        "log",
        "ValueError: Default process group has not been initialized, please make sure to call init_process_group.\n",
        [],
    ),
    (
        "store-lost-before-the-agent-gives-up",
        "log",
        "The node 'n2_1_0' has failed to send a keep-alive heartbeat to the rendezvous '9' due to an error of type RendezvousConnectionError.\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details.\n",
        [("heartbeat_lost", "cascade", {}), ("rendezvous_failure", "cascade", {"reason": "unreachable"})],
    ),
    (
        "lightning-banner",
        "log",
        "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n" + "-" * 40 + "\ndistributed_backend=nccl\n"
        "All distributed processes registered. Starting with 4 processes\n" + "-" * 40 + "\n",
        [
            ("distributed_init", "fact", {"world_size": 4}),
            ("distributed_ready", "fact", {"world_size": 4, "backend": "nccl"}),
        ],
    ),
    (
        "launch-blocking-advice-is-no-flag",
        "log",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n",
        [("advice", "advice", {"about": "CUDA_LAUNCH_BLOCKING"})],
    ),
    (
        "launch-blocking-set",
        "log",
        "+ export CUDA_LAUNCH_BLOCKING=1\n",
        [("env_flag", "fact", {"name": "CUDA_LAUNCH_BLOCKING", "value": "1"})],
    ),
    (
        "self-requeue",
        "log",
        "slurm job got SIGUSR1, saving and requeueing this job\n+ scontrol requeue 4711\n",
        [
            ("signal_received", "fact", {"signal": 10}),
            ("requeue_requested", "fact", {}),
            ("requeue_requested", "fact", {}),
        ],
    ),
    (
        "ctrl-c",
        "log",
        "srun: interrupt (one more within 1 sec to abort)\nsrun: sending Ctrl-C to StepId=5.0\nsrun: error: n1: task 0: Interrupt\n",
        [
            ("user_interrupt", "root", {"by": "srun"}),
            ("user_interrupt", "root", {"by": "srun"}),
            ("process_exit", "teardown", {"signal": 2}),
        ],
    ),
    (
        "kernel-cgroup-oom",
        "kernel",
        "[ 10.0] python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n"
        "[ 10.1] memory: usage 921600kB, limit 921600kB, failcnt 0\n"
        "[ 10.2] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/slurm_n1/uid_9/job_42/step_batch,"
        "task_memcg=/slurm_n1/uid_9/job_42/step_batch,task=python3,pid=77,uid=9\n"
        "[ 10.3] Memory cgroup out of memory: Killed process 77 (python3) total-vm:1000kB, anon-rss:300kB, file-rss:100kB, shmem-rss:0kB\n",
        [
            (
                "oom_kill",
                "root",
                {
                    "scope": "cgroup",
                    "pid": 77,
                    "comm": "python3",
                    "rss_bytes": 409600,
                    "limit_bytes": 943718400,
                    "step": "42.batch",
                },
            )
        ],
    ),
    (
        "daemon-crash-is-a-fact",
        "kernel",
        "[Wed Mar  1 17:48:34 2023] sshd[30462]: segfault at 0 ip 0000000000000000 sp 00007ffe8ceaabb8 error 14 in sshd[55d8+d0000]\n"
        "[Wed Mar  1 17:48:35 2023] python3[99]: segfault at 8 ip 00007f sp 00007ffe error 4 in libtorch.so[7f+1]\n",
        [
            ("process_exit", "fact", {"comm": "sshd", "pid": 30462}),
            ("process_exit", "confirmation", {"comm": "python3", "signal": 11}),
        ],
    ),
    (
        "xid-roles",
        "kernel",
        "NVRM: Xid (PCI:0000:38:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 9, TPC 1, SM 1): Out Of Range Address\n"
        "NVRM: Xid (PCI:0000:05:00): 48, pid=1234, name=python, DBE (double bit error) on GPU\n"
        "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.\n"
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000 0x00000000)\n",
        [
            ("xid", "fact", {"xid": 13, "pci": "0000:38:00"}),
            ("xid", "confirmation", {"xid": 48, "pid": 1234, "process": "python"}),
            ("xid", "confirmation", {"xid": 79, "detail": "GPU has fallen off the bus."}),
            ("gpu_lost", "confirmation", {"pci": "0000:05:00"}),
            ("xid", "fact", {"xid": 149}),
        ],
    ),
    (
        "controller-loses-a-node",
        "scheduler",
        "[2026-01-02T10:00:00.000] error: Nodes n[09-10] not responding, setting DOWN\n"
        "[2026-01-02T10:00:00.100] Killing JobId=19 on failed node n09\n"
        "[2026-01-02T10:00:00.200] requeue job JobId=19 due to failure of node n09\n",
        [
            ("node_state", "root", {"state": "down", "node": "n09"}),
            ("node_state", "root", {"state": "down", "node": "n10"}),
            ("scheduler_notice", "root", {"reason": "node_failure", "job": "19", "node": "n09"}),
            ("scheduler_notice", "root", {"reason": "node_failure", "job": "19", "node": "n09"}),
            ("job_state", "fact", {"state": "requeued", "job": "19"}),
        ],
    ),
    (
        "admin-downs-a-node",
        "scheduler",
        "[2026-01-02T10:00:00.000] update_node: node n3 reason set to: GPU 3 fell off the bus (Xid 79)\n"
        "[2026-01-02T10:00:00.001] update_node: node n3 state set to DOWN\n",
        [("node_state", "root", {"state": "down", "node": "n3", "reason": "GPU 3 fell off the bus (Xid 79)"})],
    ),
]
