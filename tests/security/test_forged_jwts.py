"""Only a JWT that its issuer has signed, for this audience and the current time, is accepted."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from postbus import Bus
from postbus.embedded import EmbeddedPostgres
from security.under_attack import Answer, Target, attacked, database, with_bus

pytestmark = pytest.mark.attack("forged JWTs")

ISSUER, AUDIENCE = "https://issuer.example.org", "postbus"
Claims = dict[str, Any]


class Issuer:
    """Somebody with keys of three kinds."""

    def __init__(self) -> None:
        self.rsa = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.ec = ec.generate_private_key(ec.SECP256R1())
        self.ed = ed25519.Ed25519PrivateKey.generate()

    @property
    def keys(self) -> dict[str, Any]:
        """Return the published keys."""
        own: list[tuple[str, str, Any, Any]] = [
            ("rsa", "RS256", RSAAlgorithm, self.rsa),
            ("ec", "ES256", ECAlgorithm, self.ec),
            ("ed", "EdDSA", OKPAlgorithm, self.ed),
        ]
        return {
            "keys": [
                json.loads(kind.to_jwk(key.public_key())) | {"kid": name, "alg": algorithm, "use": "sig"}
                for name, algorithm, kind, key in own
            ]
        }

    def sign(self, claims: Claims, kid: str = "rsa", **headers: Any) -> str:
        """Sign with the key of this name, or with the first one if there is none."""
        keys: dict[str, tuple[Any, str]] = {"ec": (self.ec, "ES256"), "ed": (self.ed, "EdDSA")}
        key, algorithm = keys.get(kid, (self.rsa, "RS256"))
        return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": kid} | headers)


THEIRS, OURS = Issuer(), Issuer()
"""The issuer that the server trusts, and the attacker."""


def good(**changed: Any) -> Claims:
    """Return valid claims; None removes one."""
    now = int(time.time())
    claims: Claims = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": "mallory", "exp": now + 600, "iat": now - 5,
        "postbus_roles": ["observer", "admin"], "postbus_topics": ["*"],
    }  # fmt: skip
    return {name: value for name, value in (claims | changed).items() if value is not None}


def b64(part: Any) -> str:
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def unsigned(header: Any, claims: Any = None, signature: bytes = b"") -> str:
    return f"{b64(header)}.{b64(good() if claims is None else claims)}.{b64(signature)}"


def by_hmac(key: bytes, alg: str = "HS256", **headers: Any) -> str:
    """Sign with a secret that everybody knows: the public key."""
    text = f"{b64({'alg': alg, 'typ': 'JWT', 'kid': 'rsa'} | headers)}.{b64(good())}"
    digest = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}[alg]
    return f"{text}.{b64(hmac.new(key, text.encode(), digest).digest())}"


def pem(form: serialization.PublicFormat = serialization.PublicFormat.SubjectPublicKeyInfo) -> bytes:
    return THEIRS.rsa.public_key().public_bytes(serialization.Encoding.PEM, form)


def with_signature(change: Callable[[bytes], bytes], kid: str = "rsa") -> str:
    head, _, signature = THEIRS.sign(good(), kid).rpartition(".")
    return f"{head}.{b64(change(base64.urlsafe_b64decode(signature + '==')))}"


def swapped(claims: Claims, kid: str = "rsa") -> str:
    """Return a true signature, of other claims."""
    head, _, signature = THEIRS.sign(good(sub="alice"), kid).split(".")
    return f"{head}.{b64(claims)}.{signature}"


def raw_claims(text: str) -> str:
    """Sign as the issuer, with additional claims as text: what no library would write."""
    claims = (json.dumps(good())[:-1] + ", " + text + "}").encode()
    return jwt.api_jws.encode(claims, THEIRS.rsa, algorithm="RS256", headers={"kid": "rsa"})


_EC_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_OUR_JWK = OURS.keys["keys"][0]

FORGED: dict[str, Callable[[], str]] = {
    # without a signature
    "alg none": lambda: unsigned({"alg": "none", "kid": "rsa"}),
    "alg None": lambda: unsigned({"alg": "None", "kid": "rsa"}),
    "alg NONE": lambda: unsigned({"alg": "NONE", "kid": "rsa"}),
    "alg nOnE": lambda: unsigned({"alg": "nOnE", "kid": "rsa"}),
    "alg none and a signature": lambda: unsigned({"alg": "none", "kid": "rsa"}, signature=b"x" * 256),
    "alg none without a dot": lambda: unsigned({"alg": "none", "kid": "rsa"}).rstrip("."),
    "alg empty": lambda: unsigned({"alg": "", "kid": "rsa"}),
    "alg null": lambda: unsigned({"alg": None, "kid": "rsa"}),
    "alg missing": lambda: unsigned({"kid": "rsa"}),
    "alg a list": lambda: unsigned({"alg": ["RS256", "none"], "kid": "rsa"}),
    "alg a number": lambda: unsigned({"alg": 0, "kid": "rsa"}),
    "alg with a space": lambda: unsigned({"alg": "RS256 ", "kid": "rsa"}),
    "alg with NUL": lambda: unsigned({"alg": "none\0", "kid": "rsa"}),
    "alg twice": lambda: unsigned(b'{"alg":"RS256","kid":"rsa","alg":"none"}'),
    "an empty signature": lambda: with_signature(lambda _: b""),
    "signature left out": lambda: THEIRS.sign(good()).rpartition(".")[0],
    # signed with public data
    "HS256 by the PEM": lambda: by_hmac(pem()),
    "HS256 by the PEM without its line end": lambda: by_hmac(pem().strip()),
    "HS384 by the PEM": lambda: by_hmac(pem(), "HS384"),
    "HS512 by the PEM": lambda: by_hmac(pem(), "HS512"),
    "HS256 by PKCS 1": lambda: by_hmac(pem(serialization.PublicFormat.PKCS1)),
    "HS256 by the JWK": lambda: by_hmac(json.dumps(THEIRS.keys["keys"][0]).encode()),
    "HS256 by the modulus": lambda: by_hmac(str(THEIRS.keys["keys"][0]["n"]).encode()),
    "HS256 by nothing": lambda: by_hmac(b""),
    "HS256 without a key id": lambda: by_hmac(pem(), kid=None),
    # signed by somebody else
    "another key": lambda: OURS.sign(good()),
    "another key of EC": lambda: OURS.sign(good(), "ec"),
    "another key of EdDSA": lambda: OURS.sign(good(), "ed"),
    "jwk in the header": lambda: OURS.sign(good(), jwk=_OUR_JWK),
    "jku in the header": lambda: OURS.sign(good(), jku="http://127.0.0.1:1/keys.json"),
    "x5u in the header": lambda: OURS.sign(good(), x5u="http://127.0.0.1:1/cert.pem"),
    "x5c in the header": lambda: OURS.sign(good(), x5c=["MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A"]),
    "kid of a file": lambda: OURS.sign(good(), kid="../../../../dev/null"),
    "kid of /dev/null and HMAC": lambda: by_hmac(b"", kid="/dev/null"),
    "kid with SQL": lambda: OURS.sign(good(), kid="rsa' union select 'x"),
    "kid with a command": lambda: OURS.sign(good(), kid="rsa|touch /tmp/x"),
    "kid of another key": lambda: jwt.encode(good(), OURS.rsa, algorithm="RS256", headers={"kid": "ec"}),
    "kid empty": lambda: OURS.sign(good(), kid=""),
    "kid a list": lambda: f"{b64({'alg': 'RS256', 'kid': ['rsa']})}." + THEIRS.sign(good()).partition(".")[2],
    "kid an object": lambda: f"{b64({'alg': 'RS256', 'kid': {'rsa': 1}})}." + THEIRS.sign(good()).partition(".")[2],
    "kid beyond measure": lambda: OURS.sign(good(), kid="k" * 20_000),
    # changed signatures
    "the psychic signature": lambda: unsigned({"alg": "ES256", "kid": "ec"}, signature=bytes(64)),
    "r and s are the order": lambda: unsigned(
        {"alg": "ES256", "kid": "ec"}, signature=_EC_ORDER.to_bytes(32, "big") * 2
    ),
    "r is 0, s is 1": lambda: unsigned({"alg": "ES256", "kid": "ec"}, signature=bytes(63) + b"\1"),
    "ES256 as DER": lambda: unsigned({"alg": "ES256", "kid": "ec"}, signature=b"\x30\x06\x02\x01\x00\x02\x01\x00"),
    "RSA of zeros": lambda: with_signature(lambda given: bytes(len(given))),
    "RSA of one": lambda: with_signature(lambda given: bytes(len(given) - 1) + b"\1"),
    "EdDSA of zeros": lambda: with_signature(lambda given: bytes(len(given)), "ed"),
    "cut short": lambda: with_signature(lambda given: given[:-1]),
    "half of it": lambda: with_signature(lambda given: given[: len(given) // 2]),
    "a bit of it": lambda: with_signature(lambda given: bytes([given[0] ^ 1]) + given[1:]),
    "more behind it": lambda: with_signature(lambda given: given + b"\0"),
    "of other claims": lambda: swapped(good()),
    "of other claims, EC": lambda: swapped(good(), "ec"),
    "of other claims, EdDSA": lambda: swapped(good(), "ed"),
    "RSA told to be EC": lambda: unsigned({"alg": "ES256", "kid": "rsa"}, signature=bytes(64)),
    "EC told to be RSA": lambda: unsigned({"alg": "RS256", "kid": "ec"}, signature=bytes(256)),
    # wrong claims, signed by the issuer
    "expired": lambda: THEIRS.sign(good(exp=int(time.time()) - 1)),
    "expired long ago": lambda: THEIRS.sign(good(exp=0)),
    "expires in no time": lambda: THEIRS.sign(good(exp=-1)),
    "not yet": lambda: THEIRS.sign(good(nbf=int(time.time()) + 3600)),
    "issued tomorrow": lambda: THEIRS.sign(good(iat=int(time.time()) + 86400)),
    "another issuer": lambda: THEIRS.sign(good(iss="https://other.example.org")),
    "the issuer and a slash": lambda: THEIRS.sign(good(iss=ISSUER + "/")),
    "the issuer's beginning": lambda: THEIRS.sign(good(iss=ISSUER[:-1])),
    "the issuer in capitals": lambda: THEIRS.sign(good(iss=ISSUER.upper())),
    "another audience": lambda: THEIRS.sign(good(aud="other")),
    "a longer audience": lambda: THEIRS.sign(good(aud=AUDIENCE + "2")),
    "an audience of nothing": lambda: THEIRS.sign(good(aud=[])),
    "without exp": lambda: THEIRS.sign(good(exp=None)),
    "without iss": lambda: THEIRS.sign(good(iss=None)),
    "without aud": lambda: THEIRS.sign(good(aud=None)),
    "without sub": lambda: THEIRS.sign(good(sub=None)),
    "without claims": lambda: THEIRS.sign({}),
    "exp a text": lambda: raw_claims('"exp": "never"'),
    "exp null": lambda: raw_claims('"exp": null'),
    "exp infinite": lambda: raw_claims('"exp": 1e999'),
    "exp not a number": lambda: raw_claims('"exp": NaN'),
    "exp a list": lambda: raw_claims('"exp": [9999999999]'),
    "exp an object": lambda: raw_claims('"exp": {"$gt": 0}'),
    "exp false": lambda: raw_claims('"exp": false'),
    "nbf infinite": lambda: raw_claims('"nbf": Infinity'),
    "nbf a text": lambda: raw_claims('"nbf": "soon"'),
    "iat not a number": lambda: raw_claims('"iat": NaN'),
    "iat infinite": lambda: raw_claims('"iat": 1e999'),
    "iss a list": lambda: raw_claims(f'"iss": ["https://x", "{ISSUER}x"]'),
    "iss an object": lambda: raw_claims('"iss": {}'),
    "aud a number": lambda: raw_claims('"aud": 1'),
    "aud an object": lambda: raw_claims('"aud": {"postbus": true}'),
    "aud a list of lists": lambda: raw_claims('"aud": [["postbus"]]'),
    "sub a number": lambda: raw_claims('"sub": 1'),
    "sub a list": lambda: raw_claims('"sub": ["mallory"]'),
    "claims twice, the last expired": lambda: raw_claims('"exp": 1'),
    # headers that ask for more than is supported
    "crit": lambda: THEIRS.sign(good(), crit=["exp"], exp=1),
    "crit of a name that nobody knows": lambda: THEIRS.sign(good(), crit=["x-bound-to"], **{"x-bound-to": "1.2.3.4"}),
    "crit of nothing": lambda: THEIRS.sign(good(), crit=[]),
    "crit a text": lambda: THEIRS.sign(good(), crit="b64"),
    "b64 false": lambda: THEIRS.sign(good(), b64=False, crit=["b64"]),
    # no JWT at all
    "one part": lambda: "a",
    "dots": lambda: "..",
    "five parts, as encrypted ones have": lambda: ".".join(
        [b64({"alg": "dir", "enc": "A256GCM"}), "", b64(b"x"), b64(b"x"), b64(b"x")]
    ),
    "JSON instead of dots": lambda: json.dumps(
        {"protected": b64({"alg": "none"}), "payload": b64(good()), "signature": ""}
    ).replace(" ", ""),
    "a header that is a list": lambda: unsigned([]),
    "a header that is null": lambda: unsigned(None, {}),
    "a header of garbage": lambda: f"{b64(bytes(range(256)))}.{b64(good())}.{b64(b'x')}",
    "a header with a BOM": lambda: unsigned(b"\xef\xbb\xbf" + json.dumps({"alg": "none"}).encode()),
    "a header nested deeply": lambda: unsigned(b'{"alg":"RS256","kid":"rsa","x":' + b"[" * 8000 + b"]" * 8000 + b"}"),
    "a number of many digits": lambda: unsigned(b'{"alg":"RS256","kid":"rsa","x":' + b"9" * 9000 + b"}"),
    "claims that are a list": lambda: jwt.api_jws.encode(b"[]", THEIRS.rsa, algorithm="RS256", headers={"kid": "rsa"}),
    "claims that are no JSON": lambda: jwt.api_jws.encode(b"x", THEIRS.rsa, algorithm="RS256", headers={"kid": "rsa"}),
    "claims of bad UTF-8": lambda: jwt.api_jws.encode(
        b'{"\xff":1}', THEIRS.rsa, algorithm="RS256", headers={"kid": "rsa"}
    ),
    "claims nested deeply": lambda: raw_claims('"x": ' + "[" * 9000 + "]" * 9000),
    "a JWT in a JWT": lambda: jwt.api_jws.encode(
        OURS.sign(good()).encode(), THEIRS.rsa, algorithm="RS256", headers={"kid": "rsa", "cty": "JWT"}
    ),
    "standard base64": lambda: "+/+/." + THEIRS.sign(good()).partition(".")[2],
    "letters beyond ASCII": lambda: THEIRS.sign(good()).replace(".", "\u2024"),
    "beyond measure": lambda: unsigned({"alg": "RS256", "kid": "rsa"}, good(sub="x" * 40_000), b"x" * 256),
}

# Signed by the issuer, for a subject without rights.
POWERLESS: dict[str, Callable[[], str]] = {
    "no roles": lambda: THEIRS.sign(good(postbus_roles=None)),
    "roles empty": lambda: THEIRS.sign(good(postbus_roles=[])),
    "roles in capitals": lambda: THEIRS.sign(good(postbus_roles=["ADMIN"])),
    "a role that is a star": lambda: THEIRS.sign(good(postbus_roles=["*"])),
    "roles an object": lambda: THEIRS.sign(good(postbus_roles={"admin": True})),
    "roles in a list in a list": lambda: THEIRS.sign(good(postbus_roles=[["admin"]])),
    "roles true": lambda: THEIRS.sign(good(postbus_roles=True)),
    "roles in one text with commas": lambda: THEIRS.sign(good(postbus_roles="admin,observer")),
    "roles beside others in other letters": lambda: THEIRS.sign(good(postbus_roles=["аdmin", "observеr"])),  # Cyrillic
    "roles of another claim": lambda: THEIRS.sign(good(postbus_roles=None, roles=["admin"], scope="admin")),
    "no topics": lambda: THEIRS.sign(good(postbus_topics=None)),
    "topics empty": lambda: THEIRS.sign(good(postbus_topics=[])),
    "topics an object": lambda: THEIRS.sign(good(postbus_topics={"*": 1})),
    "topics of others": lambda: THEIRS.sign(good(postbus_topics=["other.*"])),
    "topics as a regular expression": lambda: THEIRS.sign(good(postbus_topics=[".+", "t?", "[a-z]", "%"])),
    "topics with commas": lambda: THEIRS.sign(good(postbus_topics="other,*,t")),
}


async def _prepare(bus: Bus) -> None:
    await bus.admin.create_topic("t")
    await bus.send("t", "classified")


@pytest.fixture(scope="module")
def target(server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Run a server that accepts JWTs of one issuer."""
    keys: Path = tmp_path_factory.mktemp("issuer") / "jwks.json"
    keys.write_text(json.dumps(THEIRS.keys))
    with database(server) as dsn:
        with_bus(dsn, _prepare)
        options = ("--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE, "--jwt-jwks", str(keys))
        with attacked(dsn, "--auth", *options) as target:
            yield target


def _tried(target: Target, token: str) -> Answer:
    """Read a message with this token and return the answer. A token that is not ASCII is sent as UTF-8."""
    headers = (("authorization", "Bearer " + token.encode().decode("latin-1")),)
    answer = target.ask("GET", "/v1/topics/t/messages", headers=headers)
    assert b"classified" not in answer.body
    return answer


@pytest.mark.control
@pytest.mark.parametrize("kid", ["rsa", "ec", "ed"])
def test_jwt_signed_by_the_issuer_is_accepted(target: Target, kid: str) -> None:
    """Each kind of key works, so that refusals are caused by the forgery alone."""
    told = target.ask("GET", "/v1/topics/t/messages", token=THEIRS.sign(good(), kid))
    assert (told.status, b"classified" in told.body) == (200, True)


@pytest.mark.parametrize("name", FORGED)
def test_forged_jwt_is_refused(target: Target, name: str) -> None:
    """The answer is 401, or 400 or 431 for an oversized header."""
    statuses = (401, 400, 431) if "beyond" in name else (401,)
    _tried(target, FORGED[name]()).is_refused(*statuses)


@pytest.mark.parametrize("name", POWERLESS)
def test_jwt_without_rights_gets_403(target: Target, name: str) -> None:
    """The issuer is trusted, and nothing is read into its claims."""
    _tried(target, POWERLESS[name]()).is_refused(403)
