"""Settings are read strictly: what is wrong is refused with one line that says where, and what is allowed."""

from pathlib import Path

import pytest

from agent import settings, settings_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the settings stand."""
    return tmp_path / "config.yaml"


def load(file: Path, text: str, **environment: str) -> settings.Settings:
    """Settings from that text."""
    file.write_text(text, encoding="utf-8")
    return settings.load(file, environment)


def refusal(file: Path, text: str, **environment: str) -> str:
    """The line that is shown for that text, without the file's name."""
    with pytest.raises(settings.SettingsError) as caught:
        load(file, text, **environment)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{file}:")
    return line.removeprefix(f"{file}:")


def test_an_empty_file_is_all_defaults(file: Path) -> None:
    """Nothing has to be set."""
    assert settings.Settings() == load(file, "")
    assert settings.Settings() == load(file, "# only a comment\n")


def test_no_file_is_all_defaults() -> None:
    """Without a file the node's own facts still come from the environment."""
    found = settings.load(None, {"NODE_NAME": "node-a"})
    assert ("node-a", "observe") == (found.node.name, found.gate.mode)


def test_what_the_file_says_holds_and_the_rest_is_default(file: Path) -> None:
    """Every level of nesting reaches its place."""
    found = load(
        file,
        """
rungs: [inventory, driver]
host: {gid_index: 3}
node:
  hysteresis: {failures: 5}
gate: {mode: enforce}
""",
    )
    assert ("inventory", "driver") == found.rungs
    assert 3 == found.host.gid_index
    assert (5, 3) == (found.node.hysteresis.failures, found.node.hysteresis.recovery_passes)
    assert ("enforce", 30.0) == (found.gate.mode, found.gate.stable_seconds)


def test_a_node_fact_of_the_environment_wins(file: Path) -> None:
    """One file serves all nodes, so it can't know a node's name; an empty variable says nothing."""
    text = "node: {name: from-file}"
    assert "node-a" == load(file, text, NODE_NAME="node-a").node.name
    assert "from-file" == load(file, text, NODE_NAME="").node.name
    assert "other" == load(file, "", POD_NAMESPACE="other").gate.namespace


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("log_level: info\nrungz: []", "2: rungz: unknown key; allowed here: rungs, profile, "),
        ("gate:\n  moed: enforce", "2: gate.moed: unknown key; allowed here: mode, pool_label, "),
        (
            "node:\n  hysteresis:\n    fails: 1",
            "3: node.hysteresis.fails: unknown key; allowed here: failures, ",
        ),
        ("profile:\n  limit: {}", "2: profile.limit: unknown key; allowed here: name, limits"),
    ],
)
def test_an_unknown_key_is_refused_with_those_that_are_allowed(
    file: Path, text: str, line: str
) -> None:
    """A misspelt key that is ignored would be a gate left open."""
    assert refusal(file, text).startswith(line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("gate:\n  mode: on-ish", "2: gate.mode: 'on-ish' is not allowed; allowed here: observe, enforce, nrc"),
        ("log_level: INFO", "1: log_level: 'INFO' is not allowed; allowed here: debug, info, warning, error"),
    ],
)  # fmt: skip
def test_a_wrong_choice_is_refused_with_those_that_are_allowed(
    file: Path, text: str, line: str
) -> None:
    """People should not have to look up what can be chosen."""
    assert line == refusal(file, text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("node:\n  http_port: high", "2: node.http_port: Expected `int`, got `str`"),
        ("node: {http_port: true}", "1: node.http_port: Expected `int`, got `bool`"),
        (
            "node: {heartbeat_seconds: 10m}",
            "1: node.heartbeat_seconds: Expected `float`, got `str`",
        ),
        ("rungs: inventory", "1: rungs: Expected `array`, got `str`"),
        ("rungs: [inventory, 2]", "1: rungs: Expected `str`, got `int`"),
        ("log_level:", "1: log_level: Expected `str`, got `null`"),
        ("log_level: 2026-01-01", "1: log_level: Expected `str`, got `date`"),
        ("limits:\n  driver.ports: 3", "1: limits: Expected `object`, got `int`"),
        ("gate: enforce", "1: gate: Expected `object`, got `str`"),
    ],
)
def test_a_wrong_type_is_refused(file: Path, text: str, line: str) -> None:
    """What stands there is named by key and line; text with a unit is no number."""
    assert line == refusal(file, text)


@pytest.mark.parametrize("text", ["node:", "node: 3", "node: [a]"])
def test_a_section_that_is_none_is_refused_where_the_environment_sets_a_key_of_it(
    file: Path, text: str
) -> None:
    """The environment's fact has no place to go, and the one who reads the line learns which section is wrong."""
    assert refusal(file, text, NODE_NAME="node-a").startswith("1: node: Expected `object`, got `")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("node: {heartbeat_seconds: 9}", "node.heartbeat_seconds: 9 is not between 10 and 86400"),
        ("node: {heartbeat_seconds: .nan}", "node.heartbeat_seconds: nan is not between"),
        ("node: {http_port: 0}", "node.http_port: 0 is not between 1 and 65535"),
        ("gate: {pool_label: a b}", "gate.pool_label: 'a b' is not a valid label key"),
        ("gate: {agent_selector: '===,'}", "gate.agent_selector: '===,' is not a valid label sel"),
        ("gate: {node_selector: '$x'}", "gate.node_selector: '$x' is not a valid label selector"),
        ("gate: {namespace: A}", "gate.namespace: 'A' is not a valid namespace"),
        ("node: {name: Bad Name}", "node.name: 'Bad Name' is not a valid node name"),
        ("node: {http_address: foo}", "node.http_address: 'foo' is not a valid IP address"),
        ("node: {run_dir: rel}", "node.run_dir: 'rel' is not a valid absolute path"),
        ("host: {root: /nowhere-at-all}", "host.root: '/nowhere-at-all' is no folder"),
        ("gate: {breaker: {recent_seconds: 0}}", "gate.breaker.recent_seconds: 0 is not between"),
        ("gate: {http_port: 65536}", "gate.http_port: 65536 is not between"),
        ("gate: {absence_grace_seconds: -1}", "gate.absence_grace_seconds: -1 is not between"),
        ("gate: {stable_seconds: .inf}", "gate.stable_seconds: inf is not between"),
        ("node: {hysteresis: {failures: 0}}", "node.hysteresis.failures: 0 is not between"),
        ("node: {hysteresis: {recovery_passes: 101}}", "node.hysteresis.recovery_passes: 101 is"),
        (
            "node: {hysteresis: {failure_window_seconds: 0}}",
            "node.hysteresis.failure_window_seconds: 0 is",
        ),
        (
            "node: {hysteresis: {recovery_spacing_seconds: -1}}",
            "node.hysteresis.recovery_spacing_seconds: -1 is",
        ),
        (
            "node: {hysteresis: {unknown_grace_seconds: -1}}",
            "node.hysteresis.unknown_grace_seconds: -1 is",
        ),
        ("host: {gid_index: -1}", "host.gid_index: -1 is not between 0 and 65535"),
        ("rungs: []", "rungs: is empty"),
        ("gate: {taint_key: a b}", "gate.taint_key: 'a b' is not a valid taint key"),
        ("gate: {taint_key: UPPER/key}", "gate.taint_key: 'UPPER/key' is not a valid taint key"),
        ("gate: {taint_key: ''}", "gate.taint_key: '' is not a valid taint key"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(file: Path, text: str, line: str) -> None:
    """The right type is not enough: a gate without rungs or with a negative grace decides nonsense."""
    assert refusal(file, text).startswith(f"1: {line}")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("gate:\n  mode: observe\n  mode: enforce", "3: gate.mode: stands twice (first on line 2)"),
        ("gate: {}\nnode: {}\ngate: {}", "3: gate: stands twice (first on line 1)"),
        (
            "limits:\n  driver.ports:\n    mtu: 1\n    mtu: 2",
            "4: limits.driver.ports.mtu: stands twice (first on line 3)",
        ),
        ("on: enforce", "1: on: a key is text, and this is not"),
        ("limits:\n  1: {}", "2: limits.1: a key is text, and this is not"),
        ("<<: {log_level: info}", "1: <<: a key is text, and this is not"),
        (
            "node: &n {name: a}\ngate: *n",
            "2: not valid YAML: aliases (*name) are not taken here, repeat the value",
        ),
        ("limits: &l {a: *l}", "1: not valid YAML: aliases (*name) are not taken"),
        ("log_level: 2026-99-99", " not valid YAML: a value can't be read (month must be in"),
        ("host: {gid_index: !!int abc}", " not valid YAML: a value can't be read"),
        ("host: {gid_index: !!timestamp x}", " not valid YAML: a value can't be read"),
        ("host: {gid_index: !!bool zzz}", " not valid YAML: a value can't be read"),
        ("host: {gid_index: " + "9" * 5000 + "}", " not valid YAML: a value can't be read"),
        ("host: {gid_index: " + "9" * 400 + "}", "1: host.gid_index: "),
        ("- inventory", "1: settings are a mapping of keys to values"),
        ("enforce", "1: settings are a mapping of keys to values"),
        ("gate: {\nnode: [", "2: not valid YAML: "),
        ("gate: @", "1: not valid YAML: "),
        ("gate: \x01", " not valid YAML: unacceptable character #x0001"),
        ("host: {root: !!python/name:os.system }", "1: not valid YAML: could not determine a cons"),
        ("limits: " + "[" * 500, " nested too deeply"),
    ],
)
def test_yaml_that_would_mislead_is_refused(file: Path, text: str, line: str) -> None:
    """What YAML would resolve silently, unfold endlessly or turn into code never becomes a setting."""
    assert refusal(file, text).startswith(line)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Missing, a folder, endless, or no text: one line each."""
    binary = tmp_path / "binary"
    binary.write_bytes(b"rungs: \xff")
    for path, problem in [
        (tmp_path / "none", "can't be read: No such file or directory"),
        (tmp_path, "can't be read: Is a directory"),
        (Path("/proc/self/mem"), "can't be read: Input/output error"),
        (Path("/dev/zero"), f"settings may have {settings_file.MAX_FILE_BYTES} bytes at most"),
        (binary, "is not UTF-8 text (byte 7)"),
    ]:
        with pytest.raises(settings.SettingsError) as caught:
            settings.load(path, {})
        assert f"{path}: {problem}" == str(caught.value)


def test_a_file_may_have_the_greatest_size_and_not_one_byte_more(file: Path) -> None:
    """The limit is on the file, comments included."""
    head = "log_level: debug\n#"
    text = head + "x" * (settings_file.MAX_FILE_BYTES - len(head))
    assert "debug" == load(file, text).log_level
    assert " settings may have 1048576 bytes at most" == refusal(file, text + "x")


def test_limits_remember_who_set_them(file: Path) -> None:
    """An override beats the profile, one by one, and each says where it comes from."""
    found = load(
        file,
        """
profile:
  name: h200-roce
  limits:
    inventory.devices: {rdma_devices: 8, ignore: [mlx5_8]}
limits:
  inventory.devices: {rdma_devices: 9}
  driver.ports: {mtu: 4096}
""",
    )
    assert (
        {"rdma_devices": 9, "ignore": ["mlx5_8"]},
        {"rdma_devices": "override", "ignore": "profile h200-roce"},
    ) == found.limits_for("inventory.devices")
    assert ({"mtu": 4096}, {"mtu": "override"}) == found.limits_for("driver.ports")
    assert ({}, {}) == found.limits_for("driver.gids")


def test_a_profile_without_a_name_is_named_as_such(file: Path) -> None:
    """The origin says `profile`, not `profile ` and nothing."""
    found = load(file, "profile: {limits: {inventory.gpus: {gpus: 8}}}")
    assert {"gpus": "profile"} == found.limits_for("inventory.gpus")[1]
