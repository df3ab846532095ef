"""Model folders uploaded to the Hugging Face Hub, or to a server that speaks its protocol."""

import tempfile
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub import errors as hub

from trainer.errors import ModelError
from trainer.model.folder import Model
from trainer.model.saving import write_model


def push_model(
    model: Model, repository: str, *, private: bool, message: str, token: str | None
) -> str:
    """Upload a model as one commit of a repository, which is created if need be; returns its URL.

    Raises ModelError if the hub refuses it or cannot be reached.
    """
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        write_model(model, folder)
        try:
            address = api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=address.repo_id, folder_path=folder, commit_message=message)
        except (OSError, hub.HTTPError, ValueError) as error:  # type: ignore[attr-defined]
            reason = " ".join(str(error).split())
            raise ModelError(f"the model cannot be pushed to {repository}: {reason}") from error
    return str(address)
