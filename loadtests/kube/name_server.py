"""The cluster's name server, as far as headless Services go: their pods' addresses.

``python -m loadtests.kube.name_server KUBENODE KUBECONFIG``. It knows SERVICE.NAMESPACE.svc.DOMAIN
(Kubernetes DNS-Based Service Discovery); no other name exists. One question at a time, over UDP.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from loadtests.kube import configs

PORT = 53
TTL_S = 5
CALL_TIMEOUT_S = 30.0
_MESSAGE_BYTES_MAX = 4096
_ZONE = ("svc", *configs.CLUSTER_DOMAIN.split("."))


def service_of(name: str) -> tuple[str, str] | None:
    """Service and namespace of a name; None where it is none of the cluster's."""
    labels = tuple(name.rstrip(".").lower().split("."))
    if len(labels) != len(_ZONE) + 2 or labels[2:] != _ZONE:
        return None
    return labels[0], labels[1]


def addresses(listed: str) -> list[str]:
    """The addresses of an Endpoints object, those that are not ready too."""
    subsets = json.loads(listed).get("subsets") or []
    kinds = ("addresses", "notReadyAddresses")
    return [one["ip"] for subset in subsets for kind in kinds for one in subset.get(kind, [])]


class Endpoints:
    """Asks the API server."""

    def __init__(self, kubenode: str, kubeconfig: str) -> None:
        self._kubectl = [kubenode, "kubectl", f"--kubeconfig={kubeconfig}"]

    def of(self, service: str, namespace: str) -> list[str] | None:
        """The addresses of a service; None where there is none."""
        words = ["-n", namespace, "get", "endpoints", service, "-o", "json"]
        done = subprocess.run(
            [*self._kubectl, *words],
            capture_output=True,
            text=True,
            timeout=CALL_TIMEOUT_S,
            check=False,
        )
        return addresses(done.stdout) if done.returncode == 0 else None


def answer(query: dns.message.Message, endpoints: Endpoints) -> dns.message.Message:
    """The answer to a query."""
    made = dns.message.make_response(query)
    made.flags |= dns.flags.AA
    question = query.question[0]
    asked = service_of(question.name.to_text())
    found = endpoints.of(*asked) if asked else None
    if found is None:
        made.set_rcode(dns.rcode.NXDOMAIN)
    elif question.rdtype == dns.rdatatype.A and found:
        made.answer.append(dns.rrset.from_text_list(question.name, TTL_S, "IN", "A", found))
    return made


def main() -> None:
    """Serve until killed."""
    endpoints = Endpoints(*sys.argv[1:])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((configs.NODE_ADDRESS, PORT))
        while True:
            raw, client = sock.recvfrom(_MESSAGE_BYTES_MAX)
            try:
                sock.sendto(answer(dns.message.from_wire(raw), endpoints).to_wire(), client)
            except (dns.exception.DNSException, subprocess.TimeoutExpired, IndexError) as error:
                print(f"{client}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
