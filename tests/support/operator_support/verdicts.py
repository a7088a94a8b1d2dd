"""What the schema says to some specs: the API server and laptop mode must both say it."""

from __future__ import annotations

from dataclasses import dataclass

from operator_support.objects import Json


@dataclass(frozen=True)
class Verdict:
    """A spec (its model left out), and words of its refusal; None where it is good."""

    spec: Json
    refusal: str | None = None

    def __str__(self) -> str:
        return f"{self.spec} {self.refusal or 'good'}"


def volume(**source: object) -> Json:
    return {"template": {"volumes": [{"name": "v", **source}]}}


KINDS = "must be a persistentVolumeClaim, configMap, secret, emptyDir, csi, ephemeral or image"
TOKEN = {"sources": [{"serviceAccountToken": {"path": "token"}}]}
VERDICTS: tuple[Verdict, ...] = (
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
)
