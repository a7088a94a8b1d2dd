"""Verdicts of the CRD schema on specs, which the API server and laptop mode must share."""

from __future__ import annotations

from dataclasses import dataclass

from operator_support.objects import FULL, Json


@dataclass(frozen=True)
class Verdict:
    """A spec (without its model), and words of its rejection; None if it is valid."""

    spec: Json
    refusal: str | None = None

    def __str__(self) -> str:
        return f"{self.spec} {self.refusal or 'good'}"


def volume(**source: object) -> Json:
    return {"template": {"volumes": [{"name": "v", **source}]}}


def steps(*weights: int) -> list[Json]:
    return [{"weight": weight} for weight in weights]


def canary(steps: list[Json], **more: object) -> Json:
    return {"rollout": {"canary": {"steps": steps, **more}}}


KINDS = "must be a persistentVolumeClaim, configMap, secret, emptyDir, csi, ephemeral or image"
TOKEN = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
NO_ROOM = "leaves nothing of resources.memory {} for the weights; lower the one or raise the other"


def memory(kv: str, total: str | int, **resources: object) -> Json:
    return {"runtime": {"kvMemory": kv}, "resources": {"memory": total, **resources}}


MEMORY: tuple[tuple[str, str | int, bool], ...] = (
    ("2Gi", "8Gi", True),
    ("2GiB", "8Gi", True),
    ("5GiB", "4Gi", False),
    ("5Gi", "4Gi", False),
    ("4Gi", "4Gi", False),
    ("4095Mi", "4Gi", True),
    ("4194304Ki", "4Gi", False),
    ("8G", "8Gi", True),
    ("8GB", "8Gi", True),
    ("8GiB", "8G", False),
    ("9GB", "8Gi", False),
    ("0.5Gi", "512Mi", False),
    ("0.5Gi", "513Mi", True),
    ("1.5Gi", "1.6Gi", True),
    ("1T", "1Ti", True),
    ("1Ti", "1T", False),
    ("1073741823", "1Gi", True),
    ("1073741824", "1Gi", False),
    ("1Gi", 1 << 30, False),
    ("1GiB", (1 << 30) + 1, True),
    ("999999KB", 10**9, True),
    ("1000000k", 10**9, False),
    ("67108863.9999999999Ki", "64Gi", True),
    ("8.5e9", "8Gi", True),
    ("8.6E9", "8Gi", False),
    ("100%", "64Mi", True),
)
"""KV cache, memory, and whether the KV cache leaves memory for weights."""
SHM: Json = {
    "volumes": [{"name": "mine", "emptyDir": {"medium": "Memory"}}],
    "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm"}],
}
POOLED: Json = {"placement": {"pool": "shared"}}
SCALED: Json = {
    "minReplicas": 0,
    "maxReplicas": 3,
    "idleSeconds": 10,
    "scaleUpSeconds": 0,
    "scaleDownSeconds": 3600,
    "target": {"queue": 4, "ttftMilliseconds": 800, "itlMilliseconds": 50, "kv": "80%"},
}


def scaled(**changes: object) -> Json:
    return {"scaling": SCALED | changes}


KEEPS: Json = {"responses": {"claim": "kept", "count": 5, "size": "1Gi", "days": 7, "tenantShare": "50%"}}


def parallel(accelerators: int | None = None, **fields: object) -> Json:
    """Return a spec with `parallel`, and with so many accelerators for each pod."""
    accelerator = {"accelerator": {"resource": "nvidia.com/gpu", "count": accelerators}}
    return {"parallel": fields} | ({} if accelerators is None else {"resources": accelerator})


ONE_RANK = (
    "without parallel a replica has one rank, which uses one of {0} accelerators; set spec.parallel.tensor to {0}"
)
UNEQUAL = "resources.accelerator.count is {}, but the ranks of a pod are {} (tensor {} x pipeline {} / pods {})"
UNEVEN = (
    "tensor {} x pipeline {} = {} ranks cannot be divided evenly among {} pods; choose pods so that it divides them"
)
GROUP_TOKEN: Json = {"name": "group", "key": "token"}
GROUPS: tuple[Verdict, ...] = (
    *(Verdict({"parallel": fields}) for fields in ({}, {"tensor": 4}, {"pipeline": 64}, {"tensor": 1, "pods": 1})),
    Verdict(
        parallel(
            2,
            tensor=2,
            pipeline=2,
            pods=2,
            topologyKey="topology.kubernetes.io/zone",
            recoverSeconds=3600,
            tokenSecret=GROUP_TOKEN,
        )
        | {
            "replicas": 2,
            "scaling": SCALED,
            "rollout": {"maxSurge": 0, "maxUnavailable": 1} | canary(steps(5))["rollout"],
        }
    ),
    Verdict(parallel(tensor=8, pipeline=8, pods=32, topologyKey="rack")),
    *(
        Verdict({"parallel": {field: value}}, f"spec.parallel.{field} in body should be {bound}")
        for field, value, bound in (
            ("tensor", 0, "greater than or equal to 1"),
            ("tensor", 65, "less than or equal to 64"),
            ("pipeline", 0, "greater than or equal to 1"),
            ("pipeline", 65, "less than or equal to 64"),
            ("pods", 0, "greater than or equal to 1"),
            ("pods", 33, "less than or equal to 32"),
            ("recoverSeconds", 0, "greater than or equal to 1"),
            ("recoverSeconds", 3601, "less than or equal to 3600"),
        )
    ),
    Verdict(parallel(tensor="2"), "spec.parallel.tensor"),
    Verdict(parallel(tensor=16, pipeline=5), "tensor 16 x pipeline 5 = 80 ranks; a replica has at most 64"),
    *(
        Verdict(parallel(tensor=tensor, pipeline=pipeline, pods=pods), UNEVEN.format(tensor, pipeline, ranks, pods))
        for tensor, pipeline, ranks, pods in ((3, 1, 3, 2), (2, 2, 4, 8), (4, 3, 12, 5))
    ),
    Verdict(parallel(tensor=3, pods=2), UNEVEN.format(3, 1, 3, 2)),
    Verdict(parallel(pods=2), UNEVEN.format(1, 1, 1, 2)),
    Verdict(parallel(2, tensor=3, pods=2), UNEVEN.format(3, 1, 3, 2)),
    Verdict(
        parallel(tensor=2, topologyKey="rack"), "topologyKey rack keeps the pods of a group together, and pods is 1"
    ),
    *(
        Verdict(parallel(tensor=2, pods=2, topologyKey=key), "spec.parallel.topologyKey in body should")
        for key in ("", "a b", "/rack", "rack-", "Example.com/rack", "a/b/c", "r" * 64)
    ),
    Verdict(parallel(tensor=2, tokenSecret=GROUP_TOKEN), "tokenSecret is for connections between the pods of a group"),
    Verdict(parallel(tensor=2, pods=2, tokenSecret={"name": "group"}), "key"),
    Verdict(parallel(tensor=2, pods=2, tokenSecret={"name": "G", "key": "k"}), "tokenSecret.name in body"),
    Verdict(parallel(tensor=2, pods=2, tokenSecret={"name": "g", "key": "a b"}), "tokenSecret.key in body"),
    *(Verdict(parallel(count, tensor=count)) for count in (1, 2, 16)),
    Verdict(parallel(1)),
    Verdict(parallel(8, tensor=8, pipeline=4, pods=4)),
    *(
        Verdict(parallel(count, tensor=tensor, pipeline=2, pods=pods), UNEQUAL.format(count, ranks, tensor, 2, pods))
        for count, ranks, tensor, pods in ((1, 4, 2, 1), (4, 2, 2, 2), (16, 8, 8, 2))
    ),
    Verdict(parallel(2), UNEQUAL.format(2, 1, 1, 1, 1)),
    Verdict(
        {"parallel": {"tensor": 2}, "resources": {"accelerator": {"resource": "nvidia.com/gpu"}}},
        UNEQUAL.format(1, 2, 2, 1, 1) + "; each rank needs one, so make both equal",
    ),
    Verdict(parallel(17, tensor=17), "should be less than or equal to 16"),
    *(
        Verdict({"resources": {"accelerator": {"resource": "nvidia.com/gpu", "count": count}}}, ONE_RANK.format(count))
        for count in (2, 16)
    ),
    Verdict({"parallel": {"tensor": 4}, "resources": {"profile": "l4"}}),
    Verdict({"parallel": {"tensor": 2}, "runtime": {"groupBackend": "gloo"}}),
    Verdict({"parallel": {"tensor": 2}, "runtime": {"groupBackend": "mpi"}}, 'Unsupported value: "mpi"'),
    Verdict(POOLED | {"runtime": {"groupBackend": "gloo"}}, "leave out runtime.groupBackend"),
    Verdict(POOLED | {"parallel": {}}, "with placement the pods are the pool's, and a model has one rank in each"),
    Verdict(
        POOLED | {"resources": {"accelerator": {"resource": "a/b", "count": 2}}}, "set resources in the RuntimePool"
    ),
    Verdict({"parallel": {"tensor": 2}, "responses": {"days": 5}}, "leave out parallel or responses"),
    Verdict({"parallel": {"tensor": 2}, "files": {"claim": "shared"}}, "leave out parallel or files"),
    Verdict(memory("6Gi", "4Gi") | {"parallel": {"tensor": 2, "pods": 2}}),
    Verdict(memory("6Gi", "4Gi") | {"parallel": {"tensor": 2}}, NO_ROOM.format("4Gi")),
)
"""`parallel`, and the accelerators that go with it."""


def objectives(**fields: object) -> Json:
    return {"objectives": fields}


BELOW = "objectives.{0} {1} is below scaling.target.{0} {2}, up to which no replica is added"
OBJECTIVES: tuple[Verdict, ...] = (
    Verdict({"objectives": {}}),
    Verdict(objectives(availability="99.9%", ttftMilliseconds=800, ttftShare="99%", itlMilliseconds=50, itlShare="1%")),
    Verdict(objectives(availability="99.999%") | POOLED),
    *(
        Verdict(objectives(availability=share), f"{share} is no objective; give a share from 1% to 99.999%")
        for share in ("100%", "0%", "0.999", "99.9999%", "100.0%", "-5%")
    ),
    Verdict(objectives(ttftMilliseconds=9, ttftShare="100%"), "100% is no objective"),
    Verdict(objectives(itlMilliseconds=9, itlShare="0%"), "0% is no objective"),
    Verdict(objectives(availability=0.999), "spec.objectives.availability"),
    Verdict(objectives(ttftMilliseconds=0), "should be greater than or equal to 1"),
    Verdict(objectives(itlMilliseconds=3_600_001), "should be less than or equal to 3600000"),
    Verdict(objectives(ttftMilliseconds=800, itlMilliseconds=50) | scaled()),
    Verdict(objectives(ttftShare="99%", itlShare="99%") | scaled()),
    Verdict(objectives(ttftMilliseconds=799) | scaled(), BELOW.format("ttftMilliseconds", 799, 800)),
    Verdict(objectives(itlMilliseconds=49) | scaled(), BELOW.format("itlMilliseconds", 49, 50)),
    Verdict(objectives(ttftMilliseconds=1) | scaled(target={"queue": 4})),
    Verdict(objectives(ttftShare="99%"), "objectives.ttftShare 99% needs a time; set objectives.ttftMilliseconds"),
    Verdict(objectives(itlShare="99%") | scaled(target={}), "objectives.itlShare 99% needs a time"),
)
"""Objectives, and how they go with the targets of scaling."""


VERDICTS: tuple[Verdict, ...] = (
    *GROUPS,
    *OBJECTIVES,
    Verdict(KEEPS | {"files": {"claim": "shared", "size": 1 << 30, "batchLines": 64}, "replicas": 3}),
    Verdict({"responses": {"count": 5}, "rollout": {"maxSurge": 2}}),
    Verdict({"rollout": {"maxSurge": 0, "maxUnavailable": 1}}),
    Verdict(KEEPS | {"rollout": {"maxSurge": 0, "maxUnavailable": 1}}),
    Verdict(KEEPS | {"rollout": {"maxSurge": "0%"}}),
    Verdict(KEEPS | {"rollout": {"maxSurge": 1}}, "leave out rollout.maxSurge"),
    Verdict(KEEPS | {"rollout": {"canary": {"steps": [{"weight": 5}]}}}, "leave out rollout.canary"),
    Verdict({"responses": {"claim": "Kept"}}, "spec.responses.claim in body should match"),
    Verdict({"responses": {"size": "5"}}, "must be an amount such as 8Gi or 512Mi"),
    *(
        Verdict({"responses": {"tenantShare": share}}, "must be a share from 1% to 100%")
        for share in ("0%", "101%", "0.5")
    ),
    Verdict({"responses": {"days": 0}}, "should be greater than or equal to 1"),
    Verdict({"files": {}}, "spec.files.claim"),
    Verdict({"files": {"claim": "shared", "batchLines": 0}}, "should be greater than or equal to 1"),
    Verdict({"runtime": {"stateSnapshots": 0}}),
    Verdict({"runtime": {"stateSnapshots": -1}}, "should be greater than or equal to 0"),
    Verdict(POOLED | {"responses": {"days": 5}}, "set responses in the RuntimePool"),
    Verdict(POOLED | {"files": {"claim": "shared"}}, "set files in the RuntimePool"),
    Verdict({"scaling": SCALED}),
    Verdict({"scaling": {"maxReplicas": 1}}),
    Verdict({"scaling": SCALED, "replicas": 0}),
    Verdict({"scaling": SCALED} | POOLED),
    Verdict(scaled(minReplicas=3)),
    Verdict(scaled(minReplicas=4), "minReplicas is above maxReplicas"),
    Verdict({"scaling": {"minReplicas": 1}}, "maxReplicas"),
    Verdict(scaled(maxReplicas=0), "should be greater than or equal to 1"),
    Verdict(scaled(maxReplicas=257), "should be less than or equal to 256"),
    Verdict(scaled(minReplicas=-1), "should be greater than or equal to 0"),
    Verdict(scaled(idleSeconds=9), "should be greater than or equal to 10"),
    Verdict(scaled(scaleDownSeconds=3601), "should be less than or equal to 3600"),
    Verdict(scaled(target={"queue": 0}), "should be greater than or equal to 1"),
    *(Verdict(scaled(target={"kv": kv}), "must be a share from 1% to 100%") for kv in ("0%", "101%", "80", "0.8")),
    Verdict(scaled(target={"kv": "100%"})),
    Verdict(scaled(target={})),
    Verdict(POOLED),
    Verdict({"placement": {"pool": "shared", "priority": -1000, "weight": 1000, "pinned": True}, "replicas": 2}),
    Verdict(POOLED | {"runtime": {"kvMemory": "64Mi", "maxModelLen": 512, "attentionBackend": "triton"}}),
    Verdict({"placement": {"pool": "shared", "namespace": "models"}}),
    Verdict({"resources": {"profile": "a100-40g.full", "cpu": 4}, "runtime": {"attentionBackend": "triton"}}),
    Verdict(memory("5Gi", "4Gi", profile="gpu")),
    Verdict(POOLED | {"resources": {"profile": "a100"}}, "with placement the pods are the pool's; set resources"),
    Verdict({"resources": {"profile": "A100"}}, "spec.resources.profile in body should match"),
    Verdict({"placement": {"pool": "shared", "namespace": "Models"}}, "spec.placement.namespace in body should match"),
    Verdict({"placement": {"pool": "shared", "namespace": ""}}, "spec.placement.namespace in body should"),
    Verdict({"model": {"source": "hf://a/b@refs/pr/1:BF16/m-00001-of-00002.gguf"}}),
    Verdict({"model": {"source": "hf://a/b:Q4_K_M", "revision": "v1"}}),
    Verdict({"model": {"source": "hf://a/b@v1", "revision": "v1"}}, "the source names a revision already"),
    Verdict({"model": {"source": "hf://a/b:"}}, "must be demo://NAME, hf://ORG/NAME[@REVISION][:FILE]"),
    Verdict({"model": {"source": "hf://a/b:x/../m.gguf"}}, "must not contain '..'"),
    Verdict({"model": {"source": "hf://a/b", "tokenSecret": {"name": "hub", "key": "token"}}}),
    Verdict({"model": {"source": "hf://a/b", "tokenSecret": {"name": "hub"}}}, "key"),
    Verdict({"model": {"source": "hf://a/b", "tokenSecret": {"name": "Hub", "key": "t"}}}, "tokenSecret.name in body"),
    Verdict({"model": {"source": "hf://a/b", "tokenSecret": {"name": "h", "key": "a b"}}}, "tokenSecret.key in body"),
    Verdict(
        {"model": {"source": "demo://x", "tokenSecret": {"name": "h", "key": "t"}}},
        "tokenSecret goes with hf:// sources only",
    ),
    Verdict({"model": {"source": "hf://a/b", "trustRemoteCode": True}}),
    Verdict({"model": {"source": "hf://a/b", "trustRemoteCode": "yes"}}, "spec.model.trustRemoteCode"),
    Verdict(POOLED | {"model": {"source": "hf://a/b", "trustRemoteCode": False}}),
    Verdict(POOLED | {"model": {"source": "hf://a/b", "trustRemoteCode": True}}, "run no code that comes with one"),
    Verdict({"placement": {}}, "pool"),
    Verdict({"placement": {"pool": "Shared"}}, "spec.placement.pool in body should match"),
    Verdict({"placement": {"pool": "shared", "priority": 1001}}, "should be less than or equal to 1000"),
    Verdict({"placement": {"pool": "shared", "weight": 0}}, "should be greater than or equal to 1"),
    *(
        Verdict(POOLED | {"resources": {field: FULL["resources"][field]}}, "set resources in the RuntimePool")
        for field in FULL["resources"]
    ),
    *(
        Verdict(POOLED | {"template": {field: value}}, "set template in the RuntimePool")
        for field, value in {**FULL["template"], "startupDeadlineSeconds": 60}.items()
        if field != "volumeMounts"
    ),
    Verdict(POOLED | {"rollout": {"maxSurge": 1}}, "set rollout in the RuntimePool"),
    Verdict(POOLED | {"revisionHistoryLimit": 1}, "leave out revisionHistoryLimit"),
    Verdict({"revisionHistoryLimit": 0}),
    Verdict(canary(steps(10))),
    Verdict(canary(steps(*range(1, 17)), maxErrorRate="0.5%", maxLatencyIncrease="0%", minRequests=0)),
    Verdict(canary([{"weight": 5, "pauseSeconds": 0}, {"weight": 50, "paused": True}, {"weight": 100}])),
    Verdict(canary([{"weight": 5, "pauseSeconds": 1, "paused": False}])),
    Verdict(canary([]), "spec.rollout.canary.steps in body should have at least 1 items"),
    Verdict(canary(steps(*range(1, 18))), "must have at most 16 items"),
    Verdict(canary(steps(0)), "should be greater than or equal to 1"),
    Verdict(canary(steps(101)), "should be less than or equal to 100"),
    Verdict(canary(steps(10, 10)), "the weights of steps must rise from one to the next"),
    Verdict(canary(steps(*range(1, 15), 99, 98)), "the weights of steps must rise from one to the next"),
    Verdict(canary([{"pauseSeconds": 5}]), "weight"),
    Verdict(canary([{"weight": 5, "pauseSeconds": 5, "paused": True}]), "give pauseSeconds or paused, not both"),
    Verdict(canary([{"weight": 5, "pauseSeconds": -1}]), "pauseSeconds"),
    Verdict(canary(steps(5), maxErrorRate="1"), "must be a share such as 1% or 0.5%"),
    Verdict(canary(steps(5), maxErrorRate="101%"), "must be a share such as 1% or 0.5%"),
    Verdict(canary(steps(5), maxLatencyIncrease="-5%"), "must be a share such as 50% or 200%"),
    Verdict(canary(steps(5), minRequests=-1), "minRequests"),
    Verdict(POOLED | canary(steps(5)), "set rollout in the RuntimePool"),
    Verdict({"revisionHistoryLimit": 101}, "should be less than or equal to 100"),
    Verdict(POOLED | {"runtime": {"threads": 2}}, "leave out runtime.threads"),
    Verdict(volume(persistentVolumeClaim={"claimName": "data"})),
    Verdict(volume(configMap={"name": "settings"})),
    Verdict(volume(secret={"secretName": "certificates"})),
    Verdict(volume(emptyDir={})),
    Verdict(volume(csi={"driver": "secrets-store.csi.k8s.io", "readOnly": True})),
    Verdict(volume(ephemeral={"volumeClaimTemplate": {"spec": {}}})),
    Verdict(volume(image={"reference": "registry.example/weights:1"})),
    Verdict(volume(hostPath={"path": "/"}), KINDS),
    Verdict(volume(projected=TOKEN), KINDS),
    Verdict(volume(nfs={"server": "198.18.0.1", "path": "/"}), KINDS),
    Verdict(volume(), KINDS),
    *(Verdict(memory(kv, total), None if fits else NO_ROOM.format(total)) for kv, total, fits in MEMORY),
    *(Verdict({"template": {field: FULL["template"][field]}}) for field in FULL["template"] if field != "volumeMounts"),
    Verdict({"resources": FULL["resources"]}),
    Verdict({"resources": {"cpu": "500m", "cpuLimit": "0.5"}}),
    Verdict({"resources": {"cpu": 2, "cpuLimit": "1999m"}}, "cpuLimit must not be below cpu"),
    Verdict({"resources": {"ephemeralStorage": "1"}}, "must be an amount such as 8Gi or 512Mi"),
    Verdict({"template": {"shmSize": "64"}}, "must be an amount such as 8Gi or 512Mi"),
    Verdict({"template": {"shmSize": "1Gi", "volumes": [{"name": "shm", "emptyDir": {}}]}}, "choose another name"),
    *(
        Verdict({"template": {"volumes": [{"name": name, "emptyDir": {}}]}}, "the operator's own; choose another name")
        for name in ("plimsoll-files", "plimsoll-responses", "plimsoll-x")
    ),
    Verdict({"template": {"volumes": [{"name": name, "emptyDir": {}} for name in ("plimsoll", "my-plimsoll-x")]}}),
    Verdict({"template": SHM | {"shmSize": "1Gi"}}, "/dev/shm is the runtime's own"),
    Verdict({"template": SHM}),
    Verdict({"template": {"envFrom": [{"prefix": "A_"}]}}, "give either configMapRef or secretRef"),
    Verdict({"template": {"image": "two words"}}, "spec.template.image in body should match"),
    Verdict(memory("40GiB", "8Gi", accelerator={"resource": "amd.com/gpu"})),
    *(
        Verdict({"runtime": {"kvMemory": kv}}, "must be an amount such as 2Gi or a share such as 40%")
        for kv in ("0.9", "0Gi", "0.0G", "17", "1e-9", "-1Gi", "2gi", "2K", "2TB", "1 Gi", "101%", "Gi", "")
    ),
)
