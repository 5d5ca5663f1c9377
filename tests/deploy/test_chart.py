"""The Helm chart and the manifests made from it, without a cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lodefs.chunkstore.objects.in_place.source_settings import as_table
from lodefs.proxy.config import Config
from tests.deploy.conftest import DEPLOY

HELM = Path(sys.executable).with_name("helm")  # of the package helm-binary
CHART = DEPLOY / "helm/lodefs"
STORE = "store.url=s3://bucket/prefix"
ALL_ON = {
    "csi": {
        "mounter": {"allowStores": ["s3://other/store"]},
        "writable": {"credentials": "node", "existingSecret": "writer"},
    },
    "controller": {"enabled": True, "provisioner": {"image": "csi-provisioner:v6.3.0"}},
    "imagePullSecrets": [{"name": "registry"}],
    "image": {"digest": f"sha256:{'0' * 64}"},
    "proxy": {
        "affinity": {"nodeAffinity": {}},
        "cache": {"size": "500GiB", "volume": {"emptyDir": {}}},
        "env": [{"name": "A", "value": "b"}],
        "envFrom": [{"configMapRef": {"name": "more"}}],
        "extraVolumeMounts": [{"name": "data", "mountPath": "/data"}],
        "extraVolumes": [{"name": "data", "emptyDir": {}}],
        "hostNetwork": True,
        "nodeSelector": {"gpu": "yes"},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "serviceAccount": {"annotations": {"role": "reader"}},
        "settings": {"scrub_days": 3, "idle_timeout_s": 60, "log_level": "debug"},
        "tlsSecret": "certificate",
        "tokensSecret": "tokens",
    },
    "nodeLabels": {"enabled": True},
    "dashboards": {"enabled": True, "annotations": {"grafana_folder": "lodefs"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "storageClasses": [{"name": "cats", "parameters": {"repo": "vision/cats"}}],
    "sources": {"field-7": {"url": "s3://there/field-7", "region": "eu-1"}},
    "store": {"endpointUrl": "https://s3.example.org", "region": "us-east-1", "url": "s3://b/p"},
}


def helm(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """One call, however it ends."""
    return subprocess.run(
        [HELM, *words], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def rendered(*words: str, values: object = None) -> list[dict[str, Any]]:
    """The chart's objects."""
    given = ["--values", "-"] if values else []
    done = helm("template", "test", str(CHART), *words, *given, stdin=json.dumps(values))
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def test_it_has_no_faults() -> None:
    """`helm lint --strict` finds nothing, with little and with everything switched on."""
    for values in ({"store": {"url": "s3://b/p"}}, ALL_ON):
        done = helm("lint", "--strict", str(CHART), "--values", "-", stdin=json.dumps(values))
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ("proxy.cahce.size=1GiB", "cahce"),
        ("store.url=ftp://bucket/prefix", "store.url"),
        ("proxy.cache.size=lots", "proxy.cache.size"),
        ("proxy.port=70000", "proxy.port"),
        ("image.digest=sha256:12", "image.digest"),
        ("storageClasses[0].name=a", "parameters"),
        ("csi.logLevel=loud", "csi.logLevel"),
        ("csi.writable.credentials=all", "csi.writable.credentials"),
        ("csi.writable.existingSecret=writer", "csi.writable.credentials: node"),
    ],
)
def test_mistakes_are_named(mistake: str, named: str) -> None:
    """A value that is misspelt or out of range is refused, by its name."""
    done = helm("template", "test", str(CHART), "--set", STORE, "--set", mistake)
    assert done.returncode != 0
    assert named in done.stderr


def test_a_store_and_a_provisioner_are_asked_for() -> None:
    """Without the store, or without the provisioner's image for the controller, it says so."""
    assert "store.url" in helm("template", "test", str(CHART)).stderr
    done = helm("template", "test", str(CHART), "--set", f"{STORE},controller.enabled=true")
    assert "controller.provisioner.image is required" in done.stderr


def test_tokens_do_not_cross_the_network_by_accident() -> None:
    """Tokens without TLS are refused, unless the values say that they are meant."""
    words = ["template", "test", str(CHART), "--set", f"{STORE},proxy.tokensSecret=tokens"]
    assert "proxy.allowPlainTokens" in helm(*words).stderr
    assert helm(*words, "--set", "proxy.allowPlainTokens=true").returncode == 0
    assert helm(*words, "--set", "proxy.tlsSecret=certificate").returncode == 0


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in ("requests", "limits"):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


def test_every_value_is_in_the_schema() -> None:
    """What values.yaml has, the schema describes, and the other way round."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    del schema["properties"]["global"]

    def described(part: dict[str, Any], path: str = "") -> Iterator[str]:
        for key, inner in part.get("properties", {}).items():
            if "properties" in inner and key != "resources":
                yield from described(inner, f"{path}{key}.")
            else:
                yield f"{path}{key}"

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    plain = {re.sub(r"resources\.(requests|limits)$", "resources", one) for one in leaves(values)}
    assert plain == set(described(schema))


@pytest.mark.parametrize("values", [{"store": {"url": "s3://b/p"}}, ALL_ON], ids=["few", "all"])
def test_the_proxy_takes_its_settings(values: dict[str, Any]) -> None:
    """The file of settings that the chart writes is one that the proxy accepts."""
    configs = [one for one in rendered(values=values) if one["kind"] == "ConfigMap"]
    (config,) = (one for one in configs if "lodefs.toml" in one["data"])
    settings = tomllib.loads(config["data"]["lodefs.toml"])
    sources = settings.get("sources", {})
    made = Config.from_mapping(
        {**settings["serve"], "store": settings["store"], "sources": sources}
    )
    assert as_table(made.sources) == values.get("sources", {})
    assert made.cache_dir == Path("/var/cache/lodefs")
    assert str(made.socket_path) == "/run/lodefs/proxy/proxy.sock"


def test_dashboards_and_rules_are_those_of_grafana() -> None:
    """They come as they are, templates of alerts too, with the label that Grafana's sidecar looks
    for; by default none do."""
    grafana = DEPLOY.parent / "grafana"
    few = {one["kind"] for one in rendered(values={"store": ALL_ON["store"]})}
    assert "PrometheusRule" not in few
    found = rendered(values=ALL_ON)
    boards = {
        name: text
        for one in found
        if one["metadata"]["labels"].get("grafana_dashboard") == "1"
        for name, text in one["data"].items()
    }
    assert boards == {path.name: path.read_text() for path in (grafana / "dashboards").iterdir()}
    rules = {
        one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "PrometheusRule"
    }
    assert rules == {
        f"test-lodefs-{name}": yaml.safe_load((grafana / f"rules/{name}.yaml").read_text())
        for name in ("recording", "alerts")
    }


def test_only_the_node_plugin_is_privileged() -> None:
    """Containers but those that mount run without root, without capabilities, on a file system that
    they cannot change; the one that makes directories may only give them away."""
    free = {}
    for one in rendered(values=ALL_ON):
        pod = one.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", []) + pod.get("initContainers", []):
            context = {**pod.get("securityContext", {}), **container["securityContext"]}
            assert context["readOnlyRootFilesystem"], container["name"]
            if context.get("privileged") or context["runAsUser"] == 0:
                free[container["name"]] = context.get("capabilities", {}).get("add", "all")
            else:
                assert context["runAsNonRoot"], container["name"]
                assert not context["allowPrivilegeEscalation"], container["name"]
    assert free == {"mounter": "all", "driver": "all", "directories": ["CHOWN", "FOWNER"]}


def test_only_who_labels_nodes_and_the_provisioner_may_ask() -> None:
    """No other container has the token of an account, also where everything is switched on."""
    holders = set()
    for one in rendered(values=ALL_ON):
        pod = one.get("spec", {}).get("template", {}).get("spec", {})
        containers = pod.get("containers", []) + pod.get("initContainers", [])
        given = {
            volume["name"]
            for volume in pod.get("volumes", [])
            for source in volume.get("projected", {}).get("sources", [])
            if "serviceAccountToken" in source
        }
        for container in containers:
            mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
            if pod.get("automountServiceAccountToken", True) or mounted & given:
                holders.add(container["name"])
    assert holders == {"node-labels", "provisioner"}


def test_volumes_name_only_stores_that_are_allowed() -> None:
    """The mounters are told of the stores of the settings, and of none by default."""
    few = {"store": ALL_ON["store"], "controller": ALL_ON["controller"]}
    for values, expected in ((ALL_ON, ["--allow-store", "s3://other/store"]), (few, [])):
        found = rendered(values=values)
        mounters = [
            container["args"]
            for one in found
            for container in one.get("spec", {})
            .get("template", {})
            .get("spec", {})
            .get("containers", [])
            if container["args"][0] == "mounter"
        ]
        assert len(mounters) == 2
        for args in mounters:
            assert args[len(args) - len(expected) :] == expected
            assert ("--allow-store" in args) == bool(expected)


def test_changes_are_asked_for() -> None:
    """By default the driver takes none, and shows the host no mounts of its own below the state."""
    for values, writable, propagation in (
        ({"store": ALL_ON["store"]}, None, "HostToContainer"),
        (ALL_ON, "node", "Bidirectional"),
    ):
        [driver] = [
            container
            for one in rendered(values=values)
            if one["kind"] == "DaemonSet"
            for container in one["spec"]["template"]["spec"]["containers"]
            if container["name"] == "driver"
        ]
        environment = {one["name"]: one.get("value") for one in driver["env"]}
        assert environment.get("LODEFS_CSI_WRITABLE") == writable
        assert ("envFrom" in driver) == bool(writable)
        [state] = [one for one in driver["volumeMounts"] if one["name"] == "state"]
        assert state["mountPropagation"] == propagation


def test_names_are_unique_and_namespaced() -> None:
    """No two objects have one name, and all but those of the cluster are in the release's
    namespace."""
    found = rendered("--namespace", "data", values=ALL_ON)
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(names) == len(set(names))
    of_cluster = {"ClusterRole", "ClusterRoleBinding", "CSIDriver", "PriorityClass", "StorageClass"}
    for one in found:
        expected = None if one["kind"] in of_cluster else "data"
        assert one["metadata"].get("namespace") == expected, one["metadata"]["name"]


def test_the_manifests_are_those_of_the_chart(tmp_path: Path) -> None:
    """deploy/kubernetes/lodefs.yaml is what render.sh makes now."""
    script = DEPLOY / "kubernetes/render.sh"
    out = tmp_path / "lodefs.yaml"
    subprocess.run([script, out], env={"HELM": str(HELM), "PATH": "/usr/bin:/bin"}, check=True)
    assert out.read_text() == (DEPLOY / "kubernetes/lodefs.yaml").read_text(), f"run {script}"


def test_examples_name_what_there_is() -> None:
    """Volumes of the examples are of the chart's driver, and name a repository; they are read-only,
    or say that they take changes."""
    drivers = 0
    for path in sorted((DEPLOY / "kubernetes/examples").glob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text()):
            spec = one.get("spec", {})
            pod = spec.get("template", {}).get("spec", spec)
            sources = [volume["csi"] for volume in pod.get("volumes", []) if "csi" in volume]
            sources += [spec["csi"]] if "csi" in spec else []
            for source in sources:
                drivers += 1
                assert source["driver"] == "csi.lodefs.dev", path.name
                takes_changes = source["volumeAttributes"].get("write") == "true"
                assert source.get("readOnly", False) != takes_changes, path.name
                assert source["volumeAttributes"]["repo"], path.name
    assert drivers >= 5
