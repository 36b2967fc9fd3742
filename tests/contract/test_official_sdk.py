"""The official SDK, `lium.sdk` of lium.io 0.32.0, in its own interpreter."""

from __future__ import annotations

from tests.contract.conftest import Person, Server


def test_rent_by_spec_dry_and_for_real(person: Person, server: Server) -> None:
    seen = person.python(
        """
        import json
        from lium.sdk import Lium
        lium = Lium()
        dry = lium.rent(gpu_type="RTX4090", gpu_count=1, name="dry", dry_run=True)
        real = lium.rent(gpu_type="RTX4090", gpu_count=1, name="by-spec", max_price_per_gpu_hour=1.0)
        pods = [(pod.id, pod.name) for pod in lium.ps()]
        print(json.dumps({
            "features": sorted(lium.features()),
            "dry": [dry.pod, dry.attempts, dry.server_side], "price": dry.price_per_hour,
            "real": real.pod["id"], "attempts": real.attempts, "pods": pods,
        }))
        """
    )
    assert seen["features"] == ["build_context", "rent_by_spec", "rent_idempotency", "run_record"]
    assert seen["dry"] == [None, 0, True]
    assert seen["attempts"] == 1
    assert seen["price"] > 0
    assert seen["pods"] == [[seen["real"], "by-spec"]]
    assert [row["id"] for row in server.open_pods(person.name)] == [seen["real"]]


def test_a_spec_that_nothing_matches_is_told(person: Person) -> None:
    seen = person.python(
        """
        import json
        from lium.sdk import Lium, LiumError
        try:
            Lium().rent(gpu_type="RTX4090", name="cheap", max_price_per_gpu_hour=0.0001)
        except LiumError as problem:
            print(json.dumps([type(problem).__name__, str(problem)]))
        """
    )
    assert "max_price_per_gpu_hour" in seen[1] or "No node" in seen[1]


def test_a_rental_is_gone_when_its_block_ends(person: Person, server: Server) -> None:
    seen = person.python(
        """
        import json
        from lium.sdk import Lium
        lium = Lium()
        node = lium.ls(gpu_type="RTX4090")[0]
        with lium.rental(executor_id=node.id, name="block", gpu_count=1, image="limsim/any") as pod:
            done = lium.exec(pod, command="nvidia-smi -L | wc -l")
            lium.upload(pod, local=__import__("os").path.expanduser("~/.ssh/id_ed25519.pub"), remote="/root/pub")
            lium.download(pod, remote="/root/pub", local="pub")
            stream = "".join(part["data"] for part in lium.stream_exec(pod, command="echo out; echo err >&2"))
        print(json.dumps({"out": done["stdout"], "status": done["exit_code"], "stream": stream, "id": pod.id,
                          "pub": open("pub").read()}))
        """
    )
    assert (seen["out"].strip(), seen["status"]) == ("1", 0)
    assert "out" in seen["stream"]
    assert "err" in seen["stream"]
    assert seen["pub"] == (person.home / ".ssh" / "id_ed25519.pub").read_text()
    assert server.open_pods(person.name) == []


def test_objects_events_and_statements(person: Person) -> None:
    seen = person.python(
        """
        import json
        from lium.sdk import Lium
        lium = Lium()
        volume = lium.volume_create("data", description="d")
        renamed = lium.volume_update(volume.id, name="data-2")
        template = lium.create_template(name="mine", docker_image="limsim/any", docker_image_tag="1", start_command="")
        ready = lium.wait_template_ready(template.id)
        pod = lium.up(executor_id=lium.ls(gpu_type="RTX4090")[0].id, name="p", template_id=template.id, gpu_count=1,
                      volume_id=volume.id)
        pod = lium.wait_ready(pod, timeout=60)
        lium.schedule_termination(pod, termination_time="2099-01-01T00:00:00Z")
        lium.cancel_scheduled_termination(lium.refresh_pod(pod.id))
        lium.switch_template(lium.refresh_pod(pod.id), template_id=lium.templates("pytorch")[0].id)
        pod = lium.wait_ready(pod, timeout=60)
        lium.pod_feedback(pod, text="good", rating=5)
        record = lium.pod_record(pod.id)
        lium.down(pod)
        events = [event["sub_event_type"] for event in lium.events(limit=100)]
        audit = lium.audit_log(limit=50)
        statement = lium.billing_statement()
        print(json.dumps({
            "volume": renamed.name, "template": ready.status, "me": lium.me()["name"], "balance": lium.balance(),
            "events": events, "audit": [item["action"] for item in audit["items"]], "record": record["pod_id"],
            "billed": [row["pod_id"] for row in statement["pods"]], "id": pod.id,
        }))
        """
    )
    assert (seen["volume"], seen["template"]) == ("data-2", "CREATED")
    assert seen["me"] == person.name
    assert seen["billed"] == [seen["record"]] == [seen["id"]]
    assert {"pod-rent.requested", "pod-create.success", "pod-delete.requested"} <= set(seen["events"])
    assert "pod.create" in seen["audit"]
