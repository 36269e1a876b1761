"""Errors of training a reward model, which name what is wrong and what is allowed."""


class TrainingError(ValueError):
    """The reward model cannot be trained with this input or these settings."""


class BackboneRefused(TrainingError):
    """The backbone cannot be loaded, or Banyan cannot train a head on its architecture."""


class DirectoryTaken(TrainingError):
    """The output directory belongs to another training, or to none."""
