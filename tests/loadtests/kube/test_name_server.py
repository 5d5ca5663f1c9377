"""The name server of the node of the tests."""

from __future__ import annotations

import json

import dns.message
import dns.rcode

from loadtests.kube.name_server import Endpoints, addresses, answer, service_of


class OneService(Endpoints):
    """Knows peers.data, which has two pods."""

    def __init__(self) -> None:
        super().__init__("", "")

    def of(self, service: str, namespace: str) -> list[str] | None:
        return ["10.0.0.1", "10.0.0.2"] if (service, namespace) == ("peers", "data") else None


def test_names_of_services() -> None:
    """A name is a service's if it has exactly the labels of one."""
    assert service_of("peers.data.svc.cluster.local.") == ("peers", "data")
    for other in ("peers.data.svc.", "x.peers.data.svc.cluster.local.", "s3.example.org."):
        assert service_of(other) is None


def test_pods_that_are_not_ready_count() -> None:
    """A headless Service for peers publishes addresses whether pods are ready or not."""
    subset = {"addresses": [{"ip": "10.0.0.1"}], "notReadyAddresses": [{"ip": "10.0.0.2"}]}
    assert addresses(json.dumps({"subsets": [subset]})) == ["10.0.0.1", "10.0.0.2"]
    assert addresses("{}") == []


def test_answers() -> None:
    """A service is answered with its pods' addresses, an IPv6 question with none, an unknown name
    with NXDOMAIN."""
    asked = dns.message.make_query("peers.data.svc.cluster.local.", "A")
    (found,) = answer(asked, OneService()).answer
    assert sorted(one.to_text() for one in found) == ["10.0.0.1", "10.0.0.2"]
    asked = dns.message.make_query("peers.data.svc.cluster.local.", "AAAA")
    assert answer(asked, OneService()).answer == []
    asked = dns.message.make_query("other.data.svc.cluster.local.", "A")
    assert answer(asked, OneService()).rcode() == dns.rcode.NXDOMAIN
