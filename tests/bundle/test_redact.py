"""Identifying text is replaced, consistently everywhere; text that only looks like it stays."""

from __future__ import annotations

import gzip
import io
import json
import re
import zipfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.bundle.parts import BundleRefused
from trackside.bundle.redact.leak_search import LeakSearch
from trackside.bundle.redact.prefilter import LinePattern, Prefilter, line_pattern_of
from trackside.bundle.redact.redactor import Redactor, pieces
from trackside.bundle.write import BundleOptions, WrittenBundle, write
from trackside.catalog.hostlist import expand
from trackside.logs.matcher import matcher as make
from trackside.model import Run
from trackside.session import Session
from trackside.session.paths import load

TOKENS = {
    "AWS": "AKIA" + "IOSFODNN7EXAMPLE",
    "GitHub": "gh" + "p_" + "a1B2" * 9,
    "GitHub, fine-grained": "github_" + "pat_" + "a1B2c3" * 5,
    "GitLab": "gl" + "pat-" + "a1B2c3D4e5" * 2,
    "Hugging Face": "hf" + "_" + "AbCdEfGhIj" * 3,
    "OpenAI": "sk" + "-" + "a1B2c3D4" * 4,
    "Slack": "xo" + "xb-" + "1234567890-abcdef",
    "JWT": "eyJhbGciOiJI.eyJzdWIiOiIxMjM0.abc-DEF_123",
    "Docker": "dckr" + "_pat_" + "a1B2c3D4e5" * 3,
}
SECRET_LINES = [
    ("export WANDB_API_KEY={}", "0123456789abcdef" * 2 + "01234567"),
    ("AWS_SECRET_ACCESS_KEY={}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLE"),
    ("https://jdoe:{}@git.acme.internal/x.git", "s3cr3tpw"),
    ("python x.py --token={} --lr 0.1", "abc123def456"),
    ("python x.py --db-password '{}'", "hunter22!"),
    ('{{"api_key": "{}"}}', "k3y-of-some-kind"),
    ("Authorization: Bearer {}", "abcdefghij0123456789"),
    ("Authorization: Basic {}", "amRvZTpzM2NyM3Q9PT09"),
    ("GET /b?X-Amz-Signature={}&x=1", "fe5f80f77d5fa3beca038a248ff027d0"),
    ("wandb: Appending key for api.wandb.ai {}", "0123456789abcdef" * 2 + "89abcdef"),
]
LOG = """\
+ hostname
a100-b-017.hpc.acme.com
SLURM_JOB_NODELIST=a100-b-[017-018,022]
SLURM_JOB_USER=jdoe SLURM_JOB_ACCOUNT=acme-nlp SLURM_SUBMIT_HOST=login2
MASTER_ADDR=10.20.3.17 peers 10.20.3.18 10.99.0.1 eth0 aa:bb:cc:dd:ee:01 fe80::aabb:ccff:fedd:ee01
contact jane.doe@acme.com or jdoe@login2:~$
a100-b-017:4242:4299 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB
{"user": "jdoe", "hostname": "a100-b-022", "msg": "boot\\na100-b-018: up"}
\x1b[36ma100-b-022\x1b[0m: GPU-8f3a2b1c-1234-5678-9abc-def012345678 Serial Number : 1320220012345
step 1 loss 2.3
step 2 loss 2.2
Traceback (most recent call last):
  File "/home/jdoe/llm/train.py", line 10, in <module>
    main()
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB
srun: error: a100-b-018: task 3: Exited with exit code 1
"""
HARMLESS = """\
torch 2.4.1 cudnn 8.9.2.26 nvidia-cublas-cu12==12.1.3.1 127.0.0.1 0.0.0.0 localhost:29500 255.255.255.0
/usr/lib/python3.11/site-packages/torch/nn/modules/module.py root ubuntu at 09:15:42 0000:17:00.0 c10::Error rank3
--pad_token "<pad>" eos_token: </s> --max_new_tokens 512 tokens: 123456789 token_ids=[1, 2] pad_token_id=50256 gpu0
https://huggingface.co/docs https://pytorch.org/docs/stable/elastic/errors.html commit 0123456789abcdef0123456789abcdef01234567
"""
PRIVATE = (
    "a100-b",
    "acme",
    "jdoe",
    "jane",
    "login2",
    "10.20.",
    "10.99.",
    "aa:bb:cc",
    "fe80:",
    "8f3a2b1c",
    "1320220012345",
)


def redacted(*texts: str, also: tuple[str, ...] = ()) -> list[str]:
    """The redacted texts of one bundle; checks that nothing leaks."""
    redactor = Redactor(also)
    for text in texts:
        redactor.learn(text)
    redactor.assign_pseudonyms()
    results = [redactor.text(text) for text in texts]
    search = redactor.leak_search()
    assert not any(search.leaks(text.encode()) for text in results)
    return results


def redacted_bundle(folder: Path, out: Path, **options: object) -> WrittenBundle:
    case = Session.of(load([folder]))
    return write(case, [str(folder)], BundleOptions(out=str(out), created="x", redacted=True, **options))  # type: ignore[arg-type]


class TestSecrets:
    @pytest.mark.parametrize("issuer", TOKENS)
    def test_a_token_is_recognized_by_its_format(self, issuer: str) -> None:
        (text,) = redacted(f"login with {TOKENS[issuer]}, then\n")
        assert text == "login with secret-1, then\n"

    @pytest.mark.parametrize(("context", "value"), SECRET_LINES)
    def test_a_secret_is_recognized_by_the_text_before_it(self, context: str, value: str) -> None:
        text, elsewhere = redacted(context.format(value) + "\n", f"again {value} here\n")
        assert value not in text
        assert elsewhere == "again secret-1 here\n"

    def test_a_private_key_is_replaced_and_its_line_count_kept(self) -> None:
        key = f"-----BEGIN OPENSSH PRIVATE {'KEY'}-----\nb3BlbnNzaC1r\nAAAAMwAAAA\n-----END OPENSSH PRIVATE {'KEY'}-----\n"
        (text,) = redacted(f"before\n{key}after\n")
        assert text == "before\n[private key]\n\n\n\nafter\n"


MARKED = re.compile(r"(⟦.*?⟧|⦃.*?⦄)")
CASES = [
    line
    for line in (Path(__file__).parent / "leaks.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]


def is_as_marked(case: str, line: str) -> bool:
    """Whether a line lacks all that is marked in the case and has all the rest."""
    parts = MARKED.split(case)
    rest = "".join("(.{1,60}?)" if number % 2 else re.escape(part) for number, part in enumerate(parts))
    match = re.fullmatch(rest, line)
    marked = zip(parts[1::2], match.groups(), strict=True) if match else ()
    return match is not None and not any(part[0] == "⟦" and part[1:-1] in now for part, now in marked)


class TestLeaks:
    """Lines of ``leaks.txt``: a new case is a new line there."""

    @pytest.mark.parametrize("case", CASES)
    def test_each_line_is_redacted_on_its_own(self, case: str) -> None:
        (text,) = redacted(re.sub("[⟦⟧⦃⦄]", "", case) + "\n")
        assert is_as_marked(case, text.removesuffix("\n")), text

    def test_all_lines_are_redacted_in_one_log(self) -> None:
        """Names learned from one line are replaced in the others too; nothing that is marked remains."""
        (text,) = redacted("".join(re.sub("[⟦⟧⦃⦄]", "", case) + "\n" for case in CASES))
        lines = text.splitlines()
        assert len(lines) == len(CASES)
        for case, line in zip(CASES, lines, strict=True):
            if MARKED.search(case):
                assert is_as_marked(case, line), line

    def test_colors_do_not_hide_what_they_stand_in(self) -> None:
        colored = "\x1b[33mHF_TOKEN\x1b[0m=\x1b[32mtopsecretvalue\x1b[0m\n"
        as_json = '{"log": "\\u001b[33mHF_TOKEN\\u001b[0m=\\u001b[32mtopsecretvalue\\u001b[0m"}\n'
        assert redacted(colored, as_json) == ["HF_TOKEN=secret-1\n", '{"log": "HF_TOKEN=secret-1"}\n']

    @pytest.mark.parametrize("command", ["+ whoami", "jdoe@login7:~$ id -un", "$ echo $USER"])
    def test_a_user_that_a_command_prints_is_replaced(self, command: str) -> None:
        (text,) = redacted(f"{command}\nzhangsan\nthen zhangsan trains\n")
        assert "zhangsan" not in text

    def test_tokens_in_urls_are_not_mail_and_buckets_are_not_hosts(self) -> None:
        redactor = Redactor()
        redactor.learn(
            f"https://{TOKENS['GitHub']}@github.com/x s3://acme-secret-bucket/x https://mrossi:pa55@proxy.acme.com\n"
        )
        redactor.assign_pseudonyms()
        assert redactor.replaced == {
            "tokens, keys and passwords": 2, "buckets": 1, "host names": 1, "user names": 1,
        }  # fmt: skip

    def test_rare_secrets_are_replaced_everywhere_and_common_words_only_in_place(self) -> None:
        text, elsewhere = redacted(
            "https://wandb.ai/acme/llm/runs/1 --password horse WANDB_API_KEY=abc12345\n", "acme horse llm abc12345\n"
        )
        assert text == "https://wandb.ai/team-1/project-1/runs/1 --password secret-2 WANDB_API_KEY=secret-1\n"
        assert elsewhere == "team-1 horse llm secret-1\n"

    def test_a_truncated_private_key_is_replaced(self) -> None:
        (text,) = redacted(f"a\n-----BEGIN PRIVATE {'KEY'}-----\nMIIEvQIBADANBgkq\nstep 1 loss 2\n" + "step\n" * 9000)
        assert text.startswith("a\n[private key]\n\nstep 1 loss 2\n")


class TestNames:
    def test_harmless_text_stays(self) -> None:
        assert redacted(HARMLESS, LOG)[0] == HARMLESS

    def test_no_private_name_is_left(self) -> None:
        (text,) = redacted(LOG)
        assert not [word for word in PRIVATE if word in text.lower()]
        assert text.count("\n") == LOG.count("\n")
        assert "OutOfMemoryError" in text

    def test_a_node_keeps_one_alias_also_in_host_lists(self) -> None:
        (text,) = redacted(LOG)
        assert "NODELIST=node-a[017-018,022]" in text
        assert text.count("node-a018") == 2
        assert "\nnode-a017.domain-1.example\n" in text
        assert "[3] NCCL INFO" in text.split("node-a017:4242:4299 ")[1]

    def test_networks_keep_their_structure(self) -> None:
        (text,) = redacted(LOG)
        assert "MASTER_ADDR=192.0.2.17 peers 192.0.2.18 198.51.100.1" in text

    def test_a_user_name_that_is_a_word_is_replaced_only_in_place(self) -> None:
        (text,) = redacted("/home/max/x.py: max loss of max_steps 3\nUserId=max(1001)\n|max|\n")
        assert text == "/home/user-1/x.py: max loss of max_steps 3\nUserId=user-1(1001)\n|user-1|\n"

    @pytest.mark.parametrize(
        "mention",
        [
            "/gpfs/work/rech/six/mrossi/.local/bin",
            "HOME=/gpfs/six/mrossi",
            "/lustre/users/mrossi/x",
            "uid=1001(mrossi)",
        ],
    )
    def test_a_user_known_only_by_a_folder_is_replaced(self, mention: str) -> None:
        text, elsewhere = redacted(
            f"PATH={mention}:/usr/local/.cache\n" if "=" not in mention else f"{mention}\n", "/x/mrossi/y\n"
        )
        assert "mrossi" not in text
        assert "/usr/local/.cache" in text or "=" in mention
        assert elsewhere == "/x/user-1/y\n"

    def test_extra_words_are_replaced(self) -> None:
        assert redacted("Falcon-9B of FALCON\n", also=("falcon",)) == ["word-1-9B of word-1\n"]

    @given(
        st.lists(
            st.from_regex(r"[a-z]{2,8}-?[a-z]{1,3}[0-9]{1,4}", fullmatch=True), min_size=1, max_size=12, unique=True
        )
    )
    def test_hosts_keep_their_order_and_count(self, hosts: list[str]) -> None:
        redactor = Redactor()
        for host in hosts:
            redactor.learn(f"NodeName={host} State=IDLE\n")
        redactor.assign_pseudonyms()
        names = {host: redactor.text(host) for host in hosts}
        pseudonyms = {host: name for host, name in names.items() if host != name}
        assert len(set(pseudonyms.values())) == len(pseudonyms)
        assert all(name.startswith("node-") for name in pseudonyms.values())
        ordered = sorted(
            pseudonyms, key=lambda host: (host.rstrip("0123456789"), int(host[len(host.rstrip("0123456789")) :]))
        )
        assert [pseudonyms[host] for host in ordered] == sorted(
            pseudonyms.values(),
            key=lambda name: (name.rstrip("0123456789"), int(name[len(name.rstrip("0123456789")) :])),
        )

    @given(st.lists(st.ip_addresses(v=4).map(str), max_size=30))
    def test_addresses_of_one_network_share_a_replacement_network(self, addresses: list[str]) -> None:
        redactor = Redactor()
        redactor.learn("\n".join(addresses))
        redactor.assign_pseudonyms()
        names = redactor.mapping.get("IPv4 addresses", {})
        assert len(set(names.values())) == len(names)
        assert not set(names.values()) & set(names)
        for first in names:
            for second in names:
                share_network = first.rpartition(".")[0] == second.rpartition(".")[0]
                assert share_network == (names[first].rpartition(".")[0] == names[second].rpartition(".")[0])

    def test_host_lists_expand_to_the_same_aliases(self) -> None:
        (text,) = redacted("NodeList=b[01-03],c7x[1,5]\n")
        (plain,) = redacted("NodeList=b01,b02,b03,c7x1,c7x5\n")
        assert expand(text.strip().partition("=")[2], 9) == expand(plain.strip().partition("=")[2], 9)

    @pytest.mark.parametrize("name", ["node-like hal", "worker", "login"])
    def test_a_recorded_host_without_a_number_is_replaced(self, name: str) -> None:
        """If its name is a common word, only in the place of a host name."""
        host = name.split()[-1]
        redactor = Redactor()
        redactor.learn_run(Run(nodes=(host,)))
        text = f"NodeList={host}\n{host}:41:42 [0] NCCL INFO x\nDataLoader {host} of {host}s\n"
        redactor.learn(text)
        redactor.assign_pseudonyms()
        word = "node-a" if host == "hal" else host
        assert redactor.text(text) == (f"NodeList=node-a\nnode-a:41:42 [0] NCCL INFO x\nDataLoader {word} of {host}s\n")

    @pytest.mark.parametrize(
        ("recorded", "elsewhere", "becomes"),
        [
            (
                "gpu017",
                "at gpu017.hpc.acme.tech: up; gpu017.log.gz",
                "at node-a017.domain-1.example: up; node-a017.log.gz",
            ),
            ("gpu017.hpc.acme.tech", "gpu017: up", "node-a017: up"),
            ("gpu017.acme", "gpu017 in acme", "node-a017 in domain-1.example"),
        ],
    )
    def test_a_host_is_replaced_with_and_without_its_domain(self, recorded: str, elsewhere: str, becomes: str) -> None:
        redactor = Redactor()
        redactor.learn_run(Run(nodes=(recorded,)))
        redactor.learn(f"{elsewhere}\n")
        redactor.assign_pseudonyms()
        assert redactor.text(elsewhere) == becomes
        assert redactor.leak_search().leaks(elsewhere.encode())

    @pytest.mark.parametrize(
        "table",
        [
            "JOBID PARTITION NAME  USER  ST TIME NODES\n   42       gpu   lm  {user:5}  R 1:02     1\n",
            "       JobID    Account      User      State\n------------ ---------- --------- ----------\n"
            "42             acme-nlp   {user:9} COMPLETED\n42.batch       acme-nlp             COMPLETED\n",
            "JobID|User|Account\n42|{user}|acme-nlp\n",
        ],
    )
    @pytest.mark.parametrize("user", ["bobby", "max"])
    def test_users_in_tables_are_replaced(self, table: str, user: str) -> None:
        text, elsewhere = redacted(table.format(user=user), "/x/bobby/y of acme-nlp, and max loss\n")
        assert user not in text
        assert "acme-nlp" not in text
        assert ("bobby" not in elsewhere) == (user == "bobby")
        assert "max loss" in elsewhere

    def test_a_user_name_truncated_by_squeue_gets_the_same_alias(self) -> None:
        redactor = Redactor()
        redactor.learn("USER=christopher\n")
        redactor.learn("JOBID USER ST\n  42  christop  R \n")
        redactor.assign_pseudonyms()
        assert redactor.mapping["user names"] == {"christop": "user-1", "christopher": "user-1"}

    def test_infiniband_guids_are_replaced_in_both_forms(self) -> None:
        text, gid = redacted(
            "Node GUID: 0x0c42a10300abcdef\nnode_guid: 0c42:a103:00ab:cdef\nPort GUID: 0x0000000000000000\n",
            "opensm: 0x0C42A10300ABCDEF port 1, pointer 0x00007f3a2b1c4d5e\n",
        )
        assert text == (
            "Node GUID: 0x0200000000000001\nnode_guid: 0200:0000:0000:0001\nPort GUID: 0x0000000000000000\n"
        )
        assert gid == "opensm: 0x0200000000000001 port 1, pointer 0x00007f3a2b1c4d5e\n"

    def test_a_known_address_is_replaced_everywhere(self) -> None:
        (text,) = redacted("at 10.1.2.3:29500, version 10.1.2.3, version 8.9.2.26\n")
        assert text == "at 192.0.2.3:29500, version 192.0.2.3, version 8.9.2.26\n"


class TestPrefilter:
    """The prefilter must not change what is replaced: a line that it skips has no match."""

    @pytest.mark.parametrize("matcher", ["hyperscan", "re2"])
    def test_the_prefilter_misses_no_match(self, matcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip(matcher)
        monkeypatch.setattr("trackside.bundle.redact.prefilter.matcher", partial(make, prefer=matcher))
        monkeypatch.setattr("trackside.bundle.redact.redactor._learning_prefilter", Prefilter)
        lines = [
            *LOG.splitlines(),
            *HARMLESS.splitlines(),
            *TOKENS.values(),
            *(template.format(secret) for template, secret in SECRET_LINES),
        ]
        lines += [re.sub("[⟦⟧⦃⦄]", "", case) for case in CASES]
        text = "".join(f"{line}\n" for line in lines)
        prefiltered = self.learned(text)
        monkeypatch.setattr(
            "trackside.bundle.redact.redactor._learning_prefilter",
            lambda signs: Prefilter(LinePattern(rb"[^\n]") for _ in signs),
        )
        unfiltered = self.learned(text)
        assert prefiltered.mapping == unfiltered.mapping
        assert sum(map(len, prefiltered.mapping.values())) > 20
        assert prefiltered.text(text) == unfiltered._redact_with_all_kinds(
            text.replace("\x1b[36m", "").replace("\x1b[0m", "")
        )

    def learned(self, text: str) -> Redactor:
        redactor = Redactor()
        redactor.learn(text)
        redactor.assign_pseudonyms()
        return redactor

    @pytest.mark.parametrize(
        ("pattern", "sign"),
        [
            (r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d]|\.\d)", rb"(?:\d{1,3}\.){3}\d{1}"),
            (r"^a(?=[bc])[^\s(?=]{2,9}$", rb"a[^\s(?=]{2}"),
            (r"x\(?=y+", rb"x\(?=y"),
            (r"(?i)(?<!a(?:b|c))key=([a-z][\w.-]*)", rb"key=([a-z])"),
        ],
    )
    def test_a_line_pattern_drops_lookarounds_and_anchors(self, pattern: str, sign: bytes) -> None:
        assert line_pattern_of(re.compile(pattern)).regex == sign

    @given(st.lists(st.sampled_from(["step 1 loss 2\n", "\n", "at 10.1.2.3\n", "a100-b-017: up\n", "x\r\n", "é jdoe\n"])),
           st.sampled_from(["", "jdoe", "no end"]))  # fmt: skip
    def test_redaction_keeps_lines_in_place(self, lines: list[str], last: str) -> None:
        redactor = Redactor()
        redactor.learn("USER=jdoe\nNodeName=a100-b-017 \n10.1.2.3\n")
        redactor.assign_pseudonyms()
        text = "".join(lines) + last
        assert redactor.text(text) == "".join(
            redactor._redact_with_all_kinds(line) for line in text.splitlines(keepends=True)
        )


class TestTraces:
    """Leftover originals are found independently of the code that replaces them."""

    @pytest.mark.parametrize(
        "left",
        ["A100-B-017", "xa100-b-018:", "10.20.3.17", "version 10.20.3.17", "JDOE", "hpc.acme.com", "gpu-8F3A2B1C-1234",
         "AA-BB-CC-DD-EE-01", "1320220012345", "jane.doe@acme.com", "acme-NLP", "/home/max/x", "login2"],
    )  # fmt: skip
    def test_leftover_originals_are_found(self, left: str) -> None:
        assert self.leak_search().leaks(f"before {left} after\n".encode())

    @pytest.mark.parametrize(
        "other", ["a100-b-0171", "10.20.3.171", "110.20.3.17", "jdoes", "max loss", "login25", "login2::Error"]
    )
    def test_parts_of_other_words_are_no_leaks(self, other: str) -> None:
        assert not self.leak_search().leaks(f"before {other} after\n".encode())

    def leak_search(self) -> LeakSearch:
        redactor = Redactor()
        redactor.learn(LOG + "UserId=max(1001)\n")
        redactor.assign_pseudonyms()
        return redactor.leak_search()


class TestBundles:
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "jdoe-run"
        (folder / "kernel").mkdir(parents=True)
        (folder / "slurm-77001.out").write_text(LOG)
        (folder / "old.log.gz").write_bytes(gzip.compress(LOG.encode()))
        (folder / "utf16.log").write_bytes(LOG.encode("utf-16"))
        (folder / "kernel" / "a100-b-017.log").write_text(
            "Mar  1 09:58:01 a100-b-017 kernel: [100.1] NVRM: Xid (PCI:0000:17:00): 31, pid=4242, name=python\n"
        )
        with zipfile.ZipFile(folder / "more.zip", "w") as archive:
            archive.writestr("jdoe/rank1.log", LOG)
        import duckdb

        duckdb.execute(
            "COPY (SELECT 1700000000 + i AS time, 'a100-b-017' AS Hostname, '0' AS gpu, i % 100 AS DCGM_FI_DEV_GPU_UTIL"
            f" FROM range(100) t(i)) TO '{folder / 'gpu.parquet'}' (FORMAT parquet)"
        )
        return folder

    def test_no_member_of_any_format_leaks(self, tmp_path: Path) -> None:
        written = redacted_bundle(self.folder(tmp_path), tmp_path / "run.tsb")
        with zipfile.ZipFile(tmp_path / "run.tsb") as archive:
            for name in archive.namelist():
                text = f"{name}\n{archive.read(name).decode()}".lower()
                assert not [word for word in PRIVATE if word in text], name
            samples = archive.read("inputs/gpu.parquet.samples.jsonl").splitlines()
        assert json.loads(samples[0])["metric"]["node"] == "node-a017"
        assert {row.path for row in written.manifest.inputs} >= {
            "old.log.gz",
            "kernel/node-a017.log",
            "more.zip!user-1/rank1.log",
        }
        assert written.mapping["host names"]["a100-b-017"] == "node-a017"
        assert written.manifest.replaced["user names"] == 1

    def test_a_leak_is_refused_and_nothing_is_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The check of the written bundle does not depend on the code that replaces."""
        folder = self.folder(tmp_path)
        monkeypatch.setattr("trackside.bundle.redact.people.LabeledNames.redact", lambda self, text: text)
        with pytest.raises(BundleRefused, match=r"still contains originals of: .*user-1 \(user names\)"):
            redacted_bundle(folder, tmp_path / "run.tsb")
        assert not (tmp_path / "run.tsb").exists()

    def test_a_binary_file_is_left_out_and_listed(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        (folder / "weights.bin").write_bytes(b"\x93\0jdoe" * 100)
        written = redacted_bundle(folder, tmp_path / "run.tsb")
        (binary,) = [row for row in written.manifest.inputs if row.member is None]
        assert binary.path == "weights.bin"

    @given(st.lists(st.text(st.characters(codec="utf-8"), max_size=50), max_size=50))
    def test_pieces_join_to_the_whole(self, lines: list[str]) -> None:
        data = "\n".join(lines).encode()
        assert b"".join(pieces(io.BytesIO(data))) == data
