from pentalog.kernels.document_facts import Documents
from pentalog.kernels.facts import Buffer

def parse_documents(
    offsets: Buffer,
    data: Buffer,
    validity: Buffer,
    first: int,
    names: tuple[bytes, ...],
    kinds: bytes,
    needed: bytes,
) -> Documents: ...
