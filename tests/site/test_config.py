"""Settings: precedence of file, environment and flags, errors for wrong values, hidden secrets."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from trackside.settings import ConfigError, Settings
from trackside.settings.secrets import HIDDEN, url_without_secrets
from trackside.settings.shown import effective_settings
from trackside.site import config
from trackside.site.config import Site, load

FULL_CONFIG = """\
[metrics]
url = "https://metrics.example.org/prometheus"
user = "trackside"
password_file = "secrets/metrics"
headers = { X-Scope-OrgID = "gpu" }
match = { cluster = "a" }
timeout_s = 5

[metrics.labels]
Hostname = "node"
hpc_job = "job"

[[logs]]
kind = "loki"
url = "http://loki:3100"

[[logs]]
kind = "victorialogs"
url = "http://vl:9428"
bearer = "$VL_TOKEN"
match = { cluster = "a" }

[slurm]
bin = "slurm/bin"
timeout_s = 3

[store]
path = "store"

[metadata]
url = "postgresql://trackside:hunter2@db/trackside"

[serve]
listen = "127.0.0.1:9999"
write_token_files = ["secrets/senders"]

[serve.limits]
series = 1000
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, with an empty home folder."""
    (tmp_path / "here").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path / "here"


def write(folder: Path, text: str, name: str = "site.toml") -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o600)
    return path


def full_site(folder: Path, **environ: str) -> Site:
    (folder / "secrets").mkdir()
    write(folder / "secrets", "hunter2\n", "metrics")
    return load(write(folder, FULL_CONFIG), environ={"VL_TOKEN": "secret-token", **environ})


def test_every_section_becomes_the_options_of_its_part(folder: Path) -> None:
    site = full_site(folder)
    assert site.metrics is not None
    assert site.metrics.endpoint.url == "https://metrics.example.org/prometheus"
    assert (site.metrics.endpoint.user, site.metrics.endpoint.password) == ("trackside", "hunter2")
    assert site.metrics.endpoint.timeout_s == 5.0
    assert site.metrics.endpoint.headers == {"X-Scope-OrgID": "gpu"}
    assert site.metrics.labels == {"Hostname": "node", "hpc_job": "job"}
    assert [(log.kind, log.endpoint.url) for log in site.logs] == [
        ("loki", "http://loki:3100"), ("victorialogs", "http://vl:9428")
    ]  # fmt: skip
    assert site.logs[1].endpoint.bearer == "secret-token"
    assert site.slurm is not None
    assert (site.slurm.bin, site.slurm.timeout_s) == (str(folder / "slurm/bin"), 3.0)
    assert site.store == str(folder / "store")
    assert site.serve.listen == "127.0.0.1:9999"
    assert site.serve.write_token_files == (str(folder / "secrets/senders"),)
    assert (site.serve.limits.series, site.serve.store) == (1000, site.store)
    assert site.warnings == ()


def test_the_default_site_has_only_slurm(folder: Path) -> None:
    site = load(environ={"HOME": str(folder)})
    assert (site.metrics, site.logs, site.store, site.file) == (None, (), "", "")
    assert site.slurm is not None
    assert load(environ={"TRACKSIDE_SLURM_MODE": "off"}).slurm is None


def test_flags_override_the_environment_and_that_the_file(folder: Path) -> None:
    path = write(folder, '[metrics]\nurl = "http://file"\nretries = 1\ntimeout_s = 1\n')
    environ = {"TRACKSIDE_METRICS_URL": "http://environment", "TRACKSIDE_METRICS_RETRIES": "2"}
    site = load(path, {"metrics.url": "http://flag", "metrics.retries": None}, environ)
    assert site.metrics is not None
    endpoint = site.metrics.endpoint
    assert (endpoint.url, endpoint.retries, endpoint.timeout_s) == ("http://flag", 2, 1.0)
    origins = {setting.name: setting.origin for setting in site.settings}
    assert origins["metrics.url"] == "--metrics-url"
    assert origins["metrics.retries"] == "TRACKSIDE_METRICS_RETRIES"
    assert origins["metrics.timeout_s"] == f"{path} line 4"
    assert origins["metrics.deadline_s"] == "default"


def test_tables_and_lists_in_the_environment_use_toml_syntax(folder: Path) -> None:
    site = load(environ={
        "TRACKSIDE_METRICS_URL": "http://m", "TRACKSIDE_METRICS_LABELS": '{host = "node"}',
        "TRACKSIDE_SLURM_CLUSTERS": '["a", "b"]', "TRACKSIDE_SERVE_LIMITS_SERIES": "7",
    })  # fmt: skip
    assert site.metrics is not None
    assert site.slurm is not None
    assert site.metrics.labels == {"host": "node"}
    assert site.slurm.clusters == ("a", "b")
    assert site.serve.limits.series == 7


def test_one_answer_and_one_verdict_of_a_log_server_have_limits_of_their_own(folder: Path) -> None:
    path = write(folder, '[[logs]]\nkind = "loki"\nurl = "http://l"\nmax_bytes = 2000\nmax_answer_bytes = 1000\n')
    (log,) = load(path).logs
    assert (log.max_bytes, log.endpoint.max_answer_bytes) == (2000, 1000)


def test_a_log_store_may_come_from_the_environment_alone(folder: Path) -> None:
    site = load(environ={"TRACKSIDE_LOGS_KIND": "loki", "TRACKSIDE_LOGS_URL": "http://l"})
    assert [log.endpoint.url for log in site.logs] == ["http://l"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[metrics]\nurll = 'http://m'\n", "line 2: [metrics] has no key 'urll'; did you mean 'url'?"),
        ("[metric]\nurl = 'http://m'\n", "line 1: unknown section [metric]; did you mean [metrics]?"),
        ("[metrics]\nurl = 'http://m'\n\ntimeout_s = 'fast'\n", "line 4: metrics.timeout_s must be a number, not 'fast'"),
        ("[slurm]\nmode = 'rset'\n", "line 2: slurm.mode must be one of 'auto', 'commands', 'rest', 'off', not 'rset'"),
        ("[slurm]\nclusters = 'a'\n", "line 2: slurm.clusters must be a list of strings"),
        ("[metrics]\nretries = 2\n", "line 2: [metrics] has no url"),
        ("[[logs]]\nurl = 'http://l'\n", "line 2: [logs] has no kind"),
        ("[[logs]]\nkind = 'loki'\nurl = 'http://l'\n[[logs]]\nkind = 'Loki 3'\nurl = 'http://l'\n", "line 5: [logs] unknown kind of log store: 'Loki 3'; did you mean 'loki'?"),
        ("[[logs]]\nurl = 'http://l'\nkind = 'splunk'\n", "line 3: [logs] unknown kind of log store: 'splunk'; known: elasticsearch, loki"),
        ("[metrics]\nurl = 'ftp://m'\n", "line 2: [metrics] the URL 'ftp://m' must begin with http"),
        ("[metrics]\nurl = 'http://m'\nbearer = '$NO_SUCH'\n", "line 3: the environment variable NO_SUCH is not set"),
        ("[metrics]\nurl = 'http://m'\nbearer_file = 'gone'\n", "line 3: cannot read {folder}/gone: No such file"),
        ("[metrics]\nurl = 'http://m'\npassword = 5\n", "line 3: metrics.password must be a string, not the given value"),
        ("[metrics\n", "is not valid TOML"),
        ("metrics = 5\n", "line 1: metrics must be a table: write [metrics] with its keys below"),
        ("[serve]\n[serve.limts]\nseries = 5\n", "line 2: unknown section [serve.limts]; did you mean [serve.limits]?"),
        ("[serve.limits]\nserie = 5\n", "line 2: [serve.limits] has no key 'serie'; did you mean 'series'?"),
        ("[metrics]\nurl = 'http://m'\npassword = 'hunter2'\n", "[metrics] http://m: give the user of the password"),
        ("[metrics]\nurl = 'https://m'\nkey = 'k.pem'\n", "[metrics] https://m: give the certificate (cert) of the key"),
        ("[metrics]\nurl = 'http://m'\nmax_answer_bytes = -1\n", "line 3: [metrics] max_answer_bytes = -1 is too small"),
        ("[slurm]\ntimeout_s = 0\n", "line 2: [slurm] timeout_s = 0 is too small: it must be more than 0"),
        ("[journal]\nmax_bytes = 0\n", "line 2: [journal] max_bytes = 0 is too small: it must be at least 1"),
        ("[metrics]\nurl = 'http://m'\nlabels = { a = 1 }\n", "line 3: metrics.labels must be a table of strings"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_file_line_and_key(folder: Path, text: str, message: str) -> None:
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load(path, environ={})
    assert str(caught.value).startswith(str(path))
    assert message.format(folder=folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"TRACKSIDE_METRICS_URI": "http://m"},
            "TRACKSIDE_METRICS_URI: [metrics] has no key 'uri'; did you mean 'url'?",
        ),
        (
            {"TRACKSIDE_SLURM_TIMEOUT_S": "soon"},
            "TRACKSIDE_SLURM_TIMEOUT_S: slurm.timeout_s must be a number, in TOML syntax",
        ),
    ],
)
def test_a_wrong_variable_is_named(folder: Path, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ=environ)
    assert message in str(caught.value)


def test_unrelated_variables_are_ignored(folder: Path) -> None:
    assert load(environ={"TRACKSIDE_SOMETHING_ELSE": "1"}).metrics is None


def test_one_variable_for_several_log_stores_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"2 tables \[\[logs\]\]"):
        full_site(folder, TRACKSIDE_LOGS_URL="http://elsewhere")


def test_secret_and_its_file_together_are_refused(folder: Path) -> None:
    write(folder, "a\n", "secret")
    path = write(folder, "[metrics]\nurl = 'http://m'\nbearer = 'b'\nbearer_file = 'secret'\n")
    with pytest.raises(ConfigError, match=r"line 4: set metrics.bearer or bearer_file, not both"):
        load(path, environ={})


def test_no_secret_is_ever_shown(folder: Path) -> None:
    site = full_site(folder, TRACKSIDE_SLURM_TOKEN="hunter3", TRACKSIDE_SLURM_URL="http://r")
    shown = "\n".join(f"{setting.name} = {setting.value}  # {setting.origin}" for setting in site.settings)
    for secret in ("hunter2", "hunter3", "secret-token"):
        assert secret not in shown
        assert secret not in repr(site.metrics)
        assert secret not in repr(site.slurm)
    assert f'metadata.url = "postgresql://trackside:{HIDDEN}@db/trackside"' in shown
    assert 'X-Scope-OrgID" = "gpu"' in shown
    assert "logs[1].url" in shown


def test_the_dump_is_toml_with_the_same_settings(folder: Path) -> None:
    site = full_site(folder)
    text = config.dump(site)
    document = tomllib.loads(text)
    assert [log["url"] for log in document["logs"]] == ["http://loki:3100", "http://vl:9428"]
    assert document["metrics"]["labels"] == {"Hostname": "node", "hpc_job": "job"}
    assert document["serve"]["limits"]["series"] == 1000
    assert f'url = "https://metrics.example.org/prometheus"  # {site.file} line 2' in text
    assert "hunter2" not in text


def test_the_dump_says_where_slurm_is_not_queried(folder: Path) -> None:
    (folder / "plain.toml").write_text('[store]\npath = "s"\n')
    text = config.dump(config.load(folder / "plain.toml", environ={}))
    assert 'mode = "auto"  # default of diagnose --job; serve does not query Slurm' in text
    (folder / "set.toml").write_text('[slurm]\nmode = "auto"\n')
    assert "does not query Slurm" not in config.dump(config.load(folder / "set.toml", environ={}))


def test_the_manual_names_every_key() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    for section in config.SECTIONS:
        part = manual.partition(f"## `[{section.name}]`" if not section.several else f"## `[[{section.name}]]`")[2]
        part = part.partition("\n## ")[0]
        for key in section.types():
            assert f"`{key}`" in part or f"`{key}" in part, (
                f"docs/settings.md does not explain {key} in [{section.name}]"
            )


def test_a_world_readable_secret_gives_a_warning(folder: Path) -> None:
    write(folder, "hunter2\n", "secret").chmod(0o644)
    path = write(folder, "[metrics]\nurl = 'http://m'\nuser = 'u'\npassword_file = 'secret'\n")
    assert load(path, environ={}).warnings == (
        f"{folder}/secret contains a secret, and every user can read or change it; run: chmod o= {folder}/secret",
    )
    path = write(folder, "[metrics]\nurl = 'http://m'\nbearer = 'b'\n")
    path.chmod(0o644)
    [warning] = load(path, environ={}).warnings
    assert "metrics.bearer" in warning
    assert "bearer_file" in warning
    path.write_text("[metrics]\nurl = 'http://m'\nbearer = '$B'\n")
    assert load(path, environ={"B": "b"}).warnings == ()


def test_the_order_in_which_configuration_files_are_searched(folder: Path) -> None:
    home = Path(os.environ["HOME"]) / ".config" / "trackside"
    home.mkdir(parents=True)
    home_file = write(home, "[store]\npath = 'mine'\n", "trackside.toml")
    assert load(environ={}).file == str(home_file)
    local_file = write(folder, "[store]\npath = 'here'\n", "trackside.toml")
    assert load(environ={}).store == str(folder / "here")
    other = write(folder, "[store]\npath = '/other'\n", "other.toml")
    assert load(environ={"TRACKSIDE_CONFIG": str(other)}).store == "/other"
    assert load(local_file, environ={"TRACKSIDE_CONFIG": str(other)}).store == str(folder / "here")
    with pytest.raises(ConfigError, match=r"cannot read .*gone.toml: No such file"):
        load(folder / "gone.toml", environ={})


def test_a_world_writable_file_in_the_working_folder_is_ignored(folder: Path) -> None:
    local_file = write(folder, "[slurm]\nbin = '/tmp/elsewhere'\n", "trackside.toml")
    local_file.chmod(0o666)
    site = load(environ={})
    assert site.slurm is not None
    assert site.slurm.bin == ""
    assert "--config ./trackside.toml" in site.warnings[0]
    assert load("trackside.toml", environ={}).slurm.bin == "/tmp/elsewhere"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h:9090/p?x=a@b", "http://h:9090/p?x=a@b"),
        ("http://u:p@h/p", "http://u:(hidden)@h/p"),
        ("http://u:s3cr@s3cr@h/p", "http://u:(hidden)@h/p"),
        ("http://u:s3cr/s3cr@h/p", "http://u:(hidden)@h/p"),
        ("http://u:s3cr?s3cr#@h/p", "http://u:(hidden)@h/p"),
        ("https://s3cr@h", "https://(hidden)@h"),
        ("https://:s3cr@h", "https://(hidden)@h"),
        ("u:s3cr@h", "u:(hidden)@h"),
        ("http://[::1]:80/a@b", "http://[::1]:80/a@b"),
        ("http://[::1]/a@b", "http://[::1]/a@b"),
        ("postgresql://u@h/db?password=s3cr&sslmode=require", "postgresql://(hidden)@h/db?password=(hidden)&sslmode=require"),
        ("http://h/p?a=1&api_key=s3cr=s3cr", "http://h/p?a=1&api_key=(hidden)"),
        ("http://h/p?pass%77ord=s3cr", "http://h/p?pass%77ord=(hidden)"),
        ("sqlite:////var/lib/a@b.db", "sqlite:////var/lib/a@b.db"),
        ("unix:/run/slurmrestd.sock", "unix:/run/slurmrestd.sock"),
        ("", ""),
    ],
)  # fmt: skip
def test_urls_are_shown_without_their_secrets(url: str, shown: str) -> None:
    assert url_without_secrets(url) == shown


def test_secrets_in_parameters_and_headers_are_hidden(folder: Path) -> None:
    path = write(
        folder,
        "[metrics]\nurl = 'http://u:p@s3cr@m/x?password=s3cr'\nextra_params = { dedup = 'true', access_token = 's3cr' }\n"
        "[[logs]]\nkind = 'loki'\nurl = 'http://s3cr@l'\nheaders = { X-Api-Key = 's3cr', X-Scope-OrgID = 'gpu' }\n",
    )
    settings = Settings(config.SECTIONS)
    settings.read_file(path)
    shown = {setting.name: setting.value for setting in effective_settings(settings, ("metrics", "logs", "journal"))}
    assert "s3cr" not in str(shown)
    assert shown["metrics.extra_params"] == '{"dedup" = "true", "access_token" = "(hidden)"}'
    assert shown["logs.headers"] == '{"X-Api-Key" = "(hidden)", "X-Scope-OrgID" = "gpu"}'


def test_a_secret_header_in_a_world_readable_file_gives_a_warning(folder: Path) -> None:
    text = "[[logs]]\nkind = 'loki'\nurl = 'http://l'\nheaders = { Authorization = 'Bearer s3cr' }\n"
    path = write(folder, text)
    path.chmod(0o644)
    [warning] = load(path, environ={}).warnings
    assert "logs.headers" in warning
    assert "use a $VARIABLE" in warning
    path.write_text(text.replace("Bearer s3cr", "$A"))
    assert load(path, environ={"A": "Bearer s3cr"}).warnings == ()


def test_parameters_may_come_from_the_environment(folder: Path) -> None:
    path = write(folder, "[metrics]\nurl = 'http://m'\nextra_params = { access_token = '$T' }\n")
    metrics = load(path, environ={"T": "s3cr"}).metrics
    assert metrics is not None
    assert metrics.extra_params == {"access_token": "s3cr"}


def test_the_error_for_a_wrong_header_does_not_repeat_its_value(folder: Path) -> None:
    path = write(folder, "[metrics]\nurl = 'http://m'\nheaders = { Authorization = 's3cr', a = 1 }\n")
    with pytest.raises(ConfigError, match="not the given value"):
        load(path, environ={})
