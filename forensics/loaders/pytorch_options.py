"""Options of torch's loaders, torchdata, Accelerate and the Hugging Face Trainer: which decide the order, which do not, which are refused.

Names are the libraries' own: `DataLoader`, `DistributedSampler` (torch 2.13), `StatefulDataLoader` (torchdata 0.11),
`prepare_data_loader` and `DataLoaderConfiguration` (accelerate 1.15), `TrainingArguments` and `AcceleratorConfig`
(transformers 5.24; with names of 4.x). `tests/loaders/test_options_real.py` compares the lists with the signatures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.errors import ConfigError, NotReplayable
from forensics.files import read_text
from forensics.loaders.arguments import Arguments

SHARED = ("loader", "data", "column", "max_length", "world_size", "gradient_accumulation_steps", "epochs", "max_steps")
TORCH = ("batch_size", "shuffle", "drop_last", "partial_accumulation", "num_workers", "persistent_workers", "in_order", "sampler", "batch_sampler", "generator")
OWN: dict[str, tuple[str, ...]] = {
    "DistributedSampler": (*TORCH, "seed", "sampler_drop_last", "set_epoch_called"),
    "DataLoader": (*TORCH, "generator_seed"),
    "StatefulDataLoader": (*TORCH, "generator_seed", "state"),
    "Accelerate": (
        *TORCH, "seed", "data_seed", "use_seedable_sampler", "split_batches", "even_batches", "dispatch_batches", "use_stateful_dataloader",
        "skip_first_batches", "epoch", "accelerate_version", "slice_fn_for_dispatch", "torch_device_mesh",
    ),
    "Trainer": (
        "per_device_train_batch_size", "dataloader_drop_last", "seed", "data_seed", "num_train_epochs", "accelerator_config", "ignore_data_skip",
        "train_sampling_strategy", "group_by_length", "auto_find_batch_size", "parallelism_config", "deepspeed", "dataloader_in_order",
        "dataloader_num_workers", "per_gpu_train_batch_size", "tp_size",
    ),
}  # fmt: skip
LOADER_NAMES = tuple(OWN)
_TORCH_HARMLESS = "collate_fn pin_memory pin_memory_device timeout worker_init_fn multiprocessing_context prefetch_factor snapshot_every_n_steps"
_ACCELERATE_HARMLESS = "device put_on_device rng_types non_blocking"
_TRAINER_HARMLESS = """
output_dir learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio optim optim_args weight_decay adam_beta1 adam_beta2
adam_epsilon optim_target_modules average_tokens_across_devices max_grad_norm label_smoothing_factor bf16 fp16 bf16_full_eval fp16_full_eval tf32
activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend
torch_compile_mode use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps logging_strategy logging_steps
logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name
project trackio_space_id trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay per_device_eval_batch_size
prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
save_only_model save_strategy save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub hub_token hub_private_repo
hub_model_id hub_strategy hub_always_push hub_revision load_best_model_at_end metric_for_best_model greater_is_better
restore_callback_states_from_checkpoint full_determinism use_cpu dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
dataloader_multiprocessing_context remove_unused_columns label_names length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb
ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config debug skip_memory_metrics do_train do_eval do_predict
resume_from_checkpoint local_rank num_workers pin_memory persistent_workers prefetch_factor
evaluation_strategy overwrite_output_dir logging_dir save_safetensors adafactor no_cuda use_mps_device half_precision_backend fp16_backend
fp16_opt_level past_index jit_mode_eval use_ipex fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap torchdynamo ray_scope tpu_num_cores
mp_parameters include_inputs_for_metrics include_tokens_per_second push_to_hub_model_id push_to_hub_organization push_to_hub_token
"""
HARMLESS: dict[str, tuple[str, ...]] = {name: tuple(f"{_TORCH_HARMLESS} learning_rate output_dir save_steps logging_steps".split()) for name in LOADER_NAMES}
HARMLESS["Accelerate"] += tuple(_ACCELERATE_HARMLESS.split())
HARMLESS["Trainer"] = tuple(_TRAINER_HARMLESS.split())
ACCELERATOR = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "use_configured_state")
ACCELERATOR_HARMLESS = ("non_blocking", "gradient_accumulation_kwargs")


def read_options(name: str, given: Mapping[str, Any], folder: Path) -> Arguments:
    """A launch's options, with those refused whose effect is not modelled.

    Args:
        name: the loader, a key of `OWN`.
        given: option -> value.
        folder: what paths in options are relative to.

    Raises:
        ConfigError, NotReplayable: options that are unknown or not modelled.
    """
    read = Arguments(name, given, (*SHARED, *OWN[name]), HARMLESS[name])
    if name == "Trainer":
        _check_trainer(read, folder)
        return read
    workers = read.integer("num_workers", 0, least=0)
    if workers > 1:
        read.refuse("in_order", True, "batches come as workers finish them")
    for word in ("sampler", "batch_sampler", "generator"):
        read.refuse(word, None, "a sampler or generator of one's own decides the order; name the loader, and a generator's seed as `generator_seed`")
    read.refuse("use_stateful_dataloader", False, "its saved state decides where a resumed run goes on")
    read.refuse("slice_fn_for_dispatch", None, "it cuts a batch as its own code says")
    read.refuse("torch_device_mesh", None, "parallel groups share batches")
    return read


def _check_trainer(read: Arguments, folder: Path) -> None:
    strategy = read.text("train_sampling_strategy", "random")
    if strategy not in ("random", "sequential"):
        raise NotReplayable(
            f"`train_sampling_strategy: {strategy}` is not modelled: its permutation draws from the global random state",
            hint="record the ids of each batch (trainer: recorded)",
        )
    read.refuse("group_by_length", False, "its permutation draws from the global random state")
    read.refuse("auto_find_batch_size", False, "the batch size that was found is not in the options")
    read.refuse("per_gpu_train_batch_size", None, "an old name; say `per_device_train_batch_size`")
    read.refuse("tp_size", 0, "ranks of one model share batches")
    read.refuse("parallelism_config", None, "ranks of one model share batches")
    if read.integer("dataloader_num_workers", 0, least=0) > 1:
        read.refuse("dataloader_in_order", True, "batches come as workers finish them")
    _check_deepspeed(read.get("deepspeed"), folder)


def _check_deepspeed(given: object, folder: Path) -> None:
    """Refuse a DeepSpeed configuration in which ranks share batches."""
    if given is None or given == "":
        return
    if isinstance(given, str):
        try:
            given = json.loads(read_text(folder / given))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"`deepspeed: {given}` of Trainer is no JSON that can be read here ({error})", hint="give its content, or the file") from error
    if isinstance(given, Mapping) and (found := [k for k in ("tensor_parallel", "sequence_parallel_size", "pipeline", "data_efficiency") if given.get(k)]):
        raise NotReplayable(f"`{found[0]}` of the DeepSpeed configuration is not modelled: it changes which rank reads what")


def read_accelerator(read: Arguments) -> Arguments:
    """The Trainer's `accelerator_config`.

    Raises:
        ConfigError, NotReplayable: options that are unknown or not modelled.
    """
    config = Arguments("accelerator_config", read.mapping("accelerator_config"), ACCELERATOR, ACCELERATOR_HARMLESS)
    config.refuse("use_configured_state", False, "options of an Accelerator made elsewhere replace these")
    return config
