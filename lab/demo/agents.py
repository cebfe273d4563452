"""The agents of the demonstration: one for each node, one for the controller, all on this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import nvml
from lab.demo.gpus import Gpus
from lab.demo.programs import Program, ReceiverProgram
from lab.stage import RunFailed, free_port

SETTINGS = """\
[agent]
node = "{node}"
state = "{state}"
listen = "127.0.0.1:{port}"

[collect.gpu]
interval_s = 2

[collect.processes]
interval_s = 2

[collect.hang]
interval_s = 3
silence_s = 15
inactive_s = 10
unheard_s = 25
startup_s = 40
max_process_s = 20
settled_s = 20

[send.remote_write]
url = "{url}"
wait_s = 1

[send.loki]
url = "{url}"
wait_s = 1
"""


def start_agents(
    trackside: Path, folder: Path, nodes: Sequence[str], receiver: ReceiverProgram, gpus: Gpus, env: Mapping[str, str]
) -> dict[str, Program]:
    """The agents by node, each with its own state folder, port and settings; a node's agent sees the simulated GPUs of that
    node."""
    python = str(trackside / "python")
    library = folder / "nvml"
    build = "import sys, pathlib; from lab import nvml; nvml.build(pathlib.Path(sys.argv[1]))"
    result = subprocess.run([python, "-c", build, str(library)], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RunFailed(f"the stand-in NVML: {result.stderr.strip()[-400:]}")
    agents = {}
    for name in (*nodes, "controller"):
        state = folder / "agents" / name
        state.mkdir(parents=True)
        settings = state / "agent.toml"
        settings.write_text(SETTINGS.format(node=name, state=state, port=free_port(), url=receiver.url))
        command = [python, "-m", "trackside.agent", "run", "--config", str(settings)]
        agent_env = dict(env)
        if name == "controller":
            command += ["--only", "controller"]
        else:
            agent_env = nvml.environment(library / "libnvidia-ml.so.1", gpus.scripts[name].path, env)
        agents[name] = Program(name, command, agent_env, state / "agent.log")
    return agents
