"""The settings of the node's components: flags and files, as pure functions of paths."""

from __future__ import annotations

import json
from pathlib import Path

NODE = "node1"
NODE_ADDRESS = "10.88.0.2"
SERVICE_ADDRESS = (
    "10.96.0.1"  # of the API server: an address of lo, so that no kube-proxy is needed
)
SERVICE_RANGE = "10.96.0.0/24"
CLUSTER_DOMAIN = "cluster.local"
POD_RANGE = "10.244.0.0/24"
PAUSE_IMAGE = "lodefs.test/pause:1"
CONTAINERD = "/run/containerd/containerd.sock"
ETCD = "http://127.0.0.1:2379"
PLUGINS = "/usr/lib/cni"

USERS = {  # token: user, and its group
    "admin": ("admin", "system:masters"),
    "kubelet": (f"system:node:{NODE}", "system:nodes"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
}

# The kubelet sets these for the whole machine, unless it finds them as it wants them.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def tokens() -> str:
    """The API server's static token file."""
    return "".join(f'{u}-token,{name},{u},"{group}"\n' for u, (name, group) in USERS.items())


def kubeconfig(user: str, certificate: Path) -> str:
    """How a user reaches the API server (YAML, as JSON)."""
    server = f"https://{SERVICE_ADDRESS}:443"
    cluster = {"server": server, "certificate-authority": str(certificate)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": f"{user}-token"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": user}}],
            "current-context": "here",
        }
    )


def cgroup(folder: Path) -> str:
    """The node's own cgroup: a kubelet kills processes that it does not know below its own."""
    return f"lodefs-kube-{folder.name}"


def kubelet(folder: Path) -> str:
    """KubeletConfiguration: own cgroups, no eviction and no garbage collection, no iptables."""
    limits = ["memory.available", "nodefs.available", "nodefs.inodesFree"]
    limits += ["imagefs.available", "imagefs.inodesFree"]
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "clusterDNS": [NODE_ADDRESS],
            "clusterDomain": CLUSTER_DOMAIN,
            "cgroupRoot": f"/{cgroup(folder)}",
            "enforceNodeAllocatable": [],
            "evictionHard": dict.fromkeys(limits, "0%"),
            "failSwapOn": False,
            "healthzBindAddress": "127.0.0.1",
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "nodeLeaseDurationSeconds": 300,
            "oomScoreAdj": 0,
            "resolvConf": "/run/resolv.conf",
            "syncFrequency": "10s",
        }
    )


def network() -> str:
    """CNI: a bridge, addresses from one range, no way out."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "ipam": ipam}
    return json.dumps({"cniVersion": "1.0.0", "name": "node", "plugins": [bridge]})


def containerd(folder: Path) -> str:
    """containerd's TOML. Without CAP_SYS_RESOURCE, as in many containers, no score for the
    out-of-memory killer can be lowered; AppArmor may be out of reach."""
    return f"""
version = 2
root = "{folder}/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
"""


def etcd(folder: Path) -> list[str]:
    """etcd's flags: its data need not outlive the machine."""
    peer = "http://127.0.0.1:2380"
    return [
        *("--name", "e", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync"),
        *("--log-level", "error", "--listen-client-urls", ETCD, "--advertise-client-urls", ETCD),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"e={peer}"),
    ]


def api_server(keys: Path) -> list[str]:
    """The API server's flags. It finds the kubelet by address: no name can be looked up."""
    return [
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        f"--advertise-address={NODE_ADDRESS}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        f"--cert-dir={keys}",
        f"--tls-cert-file={keys}/api.crt",
        f"--tls-private-key-file={keys}/api.key",
        f"--token-auth-file={keys}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={keys}/accounts.key",
        f"--service-account-signing-key-file={keys}/accounts.key",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def controllers(folder: Path) -> list[str]:
    """The controller manager's flags."""
    return [
        f"--kubeconfig={folder}/controllers.conf",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={folder}/keys/accounts.key",
        f"--root-ca-file={folder}/keys/api.crt",
        "--node-monitor-grace-period=5m",
    ]


def scheduler(folder: Path) -> list[str]:
    """The scheduler's flags."""
    return [f"--kubeconfig={folder}/scheduler.conf", "--leader-elect=false"]


def kubelet_flags(folder: Path) -> list[str]:
    """The kubelet's flags."""
    return [
        f"--config={folder}/kubelet.json",
        f"--kubeconfig={folder}/kubelet.conf",
        f"--node-ip={NODE_ADDRESS}",
        f"--hostname-override={NODE}",
    ]
