"""Canonical metric names, their units, and what trainers call them.

Every source asks `resolve` for the canonical name of what it read and the factor into the canonical unit, so that rules
know one vocabulary: `train_loss`, `train_loss/<source>`, `eval_loss[/set]`, `grad_norm`, ... A name nobody knows is kept
as the trainer wrote it (`is_known` tells), because every logged number stays in the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", float, NDArray[np.float64])


@dataclass(frozen=True)
class Metric:
    """One canonical metric. `family`: members are `name/<label>` as well."""

    name: str
    unit: str
    doc: str
    panel: str = ""
    family: bool = False


_Q, _S, _P, _R = "quality", "stability", "performance", "resources"
METRICS = {
    m.name: m
    for m in (
        Metric("train_loss", "nats/token", "training loss; `train_loss/<source>` per source", _Q, True),
        Metric("eval_loss", "nats/token", "loss on a held-out set; `eval_loss/<set>`", _Q, True),
        Metric("train_ppl", "1", "exp of the training loss", _Q, True),
        Metric("eval_ppl", "1", "exp of the held-out loss", _Q, True),
        Metric("eval_bpb", "bit/byte", "held-out bits per byte", _Q, True),
        Metric("train_accuracy", "1", "share of right predictions in training", _Q, True),
        Metric("eval_accuracy", "1", "share of right predictions on a held-out set", _Q, True),
        Metric("aux_loss", "nats/token", "losses beside the main one: router balance, z-loss, multi-token prediction", _Q, True),
        Metric("source_tokens", "token", "tokens of one source in the step", _Q, True),
        Metric("source_share", "1", "share of one source in the step", _Q, True),
        Metric("regressed_loss", "nats/token", "loss of one source, regressed from the shares of all over a stretch of steps", _Q, True),
        Metric("odd_share", "1", "share of the step's tokens in documents that are odd against the baseline", _Q),
        Metric("document_length", "token", "longest document met in the step", _P),
        Metric("learning_rate", "1", "learning rate; `learning_rate/<group>` where groups differ", _Q, True),
        Metric("grad_norm", "1", "gradient norm before clipping; `grad_norm/<part>`", _S, True),
        Metric("clip_ratio", "1", "factor that clipping put on the gradient: 1 = not clipped", _S),
        Metric("clip_share", "1", "share of steps (or gradients) that were clipped", _S),
        Metric("loss_scale", "1", "fp16 loss scale", _S),
        Metric("skipped_steps", "step", "updates skipped since the last record", _S),
        Metric("nan_steps", "step", "steps with a loss that is not finite since the last record", _S),
        Metric("grad_zeros", "1", "gradient entries that are zero", _S),
        Metric("params_norm", "1", "norm of the parameters; `params_norm/<part>`", _S, True),
        Metric("update_norm", "1", "norm of the update; `update_norm/<part>`", _S, True),
        Metric("update_rms", "1", "RMS of gradient over root of second moment; `update_rms/<part>`", _S, True),
        Metric("logit_norm", "1", "size of the output or attention logits; `logit_norm/<part>`", _S, True),
        Metric("router", "1", "router statistics of mixtures of experts: entropy, load, dropped tokens", _S, True),
        Metric("weight_decay", "1", "weight decay", _S),
        Metric("momentum", "1", "first moment's decay", _S),
        Metric("tokens_per_second", "token/s", "throughput of the whole run", _P),
        Metric("tokens_per_second_per_device", "token/s", "throughput of one device", _P),
        Metric("samples_per_second", "sequence/s", "throughput in sequences", _P),
        Metric("steps_per_second", "step/s", "throughput in steps", _P),
        Metric("step_time", "s", "seconds per step", _P),
        Metric("data_time", "s", "seconds waiting for data per step", _P),
        Metric("eval_time", "s", "seconds of an evaluation", _P, True),
        Metric("save_time", "s", "seconds of saving a checkpoint", _P),
        Metric("elapsed_time", "s", "seconds since the start of this launch", _P),
        Metric("tflops", "TFLOP/s", "achieved floating point rate, all devices as the trainer counts", _P),
        Metric("tflops_per_device", "TFLOP/s", "achieved floating point rate of one device", _P),
        Metric("mfu", "1", "model FLOP utilisation", _P),
        Metric("batch_size", "sequence", "sequences per step", _P),
        Metric("batch_tokens", "token", "tokens per step", _P),
        Metric("sequence_length", "token", "length of a row", _P),
        Metric("max_sequence_length", "token", "longest row of the step", _P),
        Metric("consumed_samples", "sequence", "sequences consumed up to and including the step", _P),
        Metric("consumed_tokens", "token", "tokens consumed up to and including the step", _P),
        Metric("recorded", "1", "1 where a step that the log lists holds a training loss, 0 where it is listed without one; absent where all hold one", _P),
        Metric("epoch", "epoch", "passes over the training set", _P),
        Metric("memory_allocated", "bytes", "device memory in use", _R),
        Metric("memory_reserved", "bytes", "device memory held by the allocator", _R),
        Metric("memory_peak", "bytes", "highest device memory in use", _R),
        Metric("memory_peak_reserved", "bytes", "highest device memory held by the allocator", _R),
        Metric("memory_share", "1", "share of the device memory in use", _R),
        Metric("memory_retries", "1", "times the allocator had to free its cache", _R),
        Metric("gpu_utilization", "1", "share of time the device was busy", _R),
        Metric("sm_clock", "Hz", "clock of the device", _R),
        Metric("power", "W", "power of the device", _R),
        Metric("temperature", "degC", "temperature of the device", _R),
        Metric("cpu_memory", "bytes", "memory of the host process", _R),
        Metric("loader_queue", "1", "batches ready in the loader's queue", _R),
    )
}

_ALIASES = {
    "train_loss": """
        loss lm_loss lmloss ce_loss celoss nll_loss nll cross_entropy crossentropy crossentropyloss ce reduced_train_loss
        language_cross_entropy languagecrossentropy loss_train total_loss loss_total final_loss token_loss loss_mean mean_loss avg_loss
        loss_avg average_loss global_avg_loss loss_metrics_global_avg_loss loss_per_token step_loss batch_loss loss_step train_total
        loss_train_total xent masked_lm_loss mlm_loss""",
    "train_ppl": "ppl perplexity lm_loss_ppl language_perplexity languageperplexity",
    "train_accuracy": "accuracy acc token_accuracy mean_token_accuracy",
    "grad_norm": """
        grad_norm gradnorm gradient_norm global_grad_norm total_grad_norm grad_norm_global gnorm l2_norm_grad_global grad_l2_norm norm
        global_gradient_norm gradient_global_norm grad_norm_total raw_grad_norm grad_norm_before_clip grad_global_norm""",
    "learning_rate": """
        lr learning_rate learning_rate_0 lr_0 learning_rate_group0 lr_group0 lr_decoupledadamw_group0 lr_adamw lr_adamw_pg1 current_lr
        learning_current_learning_rate lr_group_0 group_0_lr lr_g0""",
    "loss_scale": "loss_scale lossscale grad_scale scale scaler_scale fp16_loss_scale lscale",
    "skipped_steps": "number_of_skipped_iterations skipped_iterations skipped skipped_steps num_skipped_steps overflow overflows step_skipped",
    "nan_steps": "number_of_nan_iterations nan_iterations nan_steps",
    "grad_zeros": "num_zeros zeros num_zeros_in_grad grad_zeros",
    "params_norm": "params_norm param_norm parameter_norm weight_norm model_norm l2_norm_param_global total_param_norm",
    "update_norm": "update_norm l2_norm_update_global global_update_norm",
    "clip_ratio": "clip_coef clip_ratio clip_factor grad_clip_coef clip_coefficient",
    "clip_share": "clipping_rate clip_rate clip_share",
    "tokens_per_second": """
        tokens_per_second tokens_per_sec tok_per_sec tok_s tokens_s tps throughput_tokens tokens_sec global_tps tokens_per_second_total
        toks_per_sec tokens_second token_throughput total_tokens_per_second""",
    "tokens_per_second_per_device": """
        tokens_per_second_per_device tokens_s_device device_tokens_per_second device_tokens_per_sec tokens_per_sec_per_gpu
        tokens_per_gpu_per_second tokens_per_second_per_gpu tgs per_device_tokens_per_sec tok_s_gpu tokens_per_gpu_s device_tps
        throughput_tps tps_gpu throughput_per_device tps_per_gpu""",
    "samples_per_second": """
        samples_per_second samples_per_sec samples_sec samples_s examples_per_second batches_samples_per_sec sequences_per_second
        currsamplespersec""",
    "steps_per_second": """
        steps_per_second it_sec iter_per_sec iterations_per_second steps_per_sec batches_per_second batches_per_sec
        device_batches_per_second it_s bps device_bps iters_per_sec""",
    "step_time": """
        step_time iteration_time iter_time elapsed_time_per_iteration time_per_step time_per_iteration dt train_step_timing_in_s
        step_avg_s seconds_per_step batch_time time_metrics_end_to_end end_to_end sec_per_step step_seconds
        perf_step_time_seconds step_duration time_per_iter""",
    "data_time": """
        data_time data_loading_time time_metrics_data_loading batch_generator time_data data_wait_time dataloader_time loader_time
        fetch_time data_load_time data_wait_s data_loading""",
    "save_time": "save_time save_checkpoint checkpoint_time checkpoint_save_time save_checkpoint_time",
    "eval_time": "eval_time eval_runtime evaluate_time validation_time evaluate",
    "elapsed_time": "train_time runtime wall_time elapsed elapsed_time total_time wall_clock relative_time time_total_s",
    "tflops": "tflops teraflops model_tflops",
    "tflops_per_device": """
        tflops_per_gpu model_tflops_per_gpu throughput_per_gpu tflop_s_device tflops_per_device throughput_per_gpu_tflop_s_gpu
        perf_per_device_tflops_sec approx_flops_per_gpu per_device_tflops tflop_s_gpu tflops_gpu""",
    "mfu": "mfu model_flops_utilization device_mfu",
    "batch_size": "global_batch_size batch_size gbs global_batchsize",
    "batch_tokens": """
        n_tokens batch_tokens tokens_per_batch num_tokens_in_batch tokens_in_batch total_weights ntokens tokens_per_step batch_num_tokens""",
    "sequence_length": "seqlen actual_seqlen sequence_length seq_length seq_len seqlen_actual curriculum_seqlen context_length",
    "max_sequence_length": "max_seq max_seq_len max_seqlen max_sequence_length",
    "consumed_samples": "consumed_samples consumed_train_samples samples_seen samples_count time_sample num_samples_seen",
    "consumed_tokens": """
        consumed_tokens tokens tokens_seen total_tokens num_tokens num_input_tokens_seen consumed_train_tokens trained_tokens
        tokens_consumed tokens_processed time_token total_tokens_seen num_tokens_seen n_tokens_seen cumulative_tokens ntokens_seen
        total_ntoks""",
    "epoch": "epoch epochs",
    "memory_allocated": """
        mem_allocated_bytes allocated_memory current_allocated_mem allocated gpu_mem_allocated memallocated memory_allocated_bytes
        mem_allocated_avg memory_current_active_mem""",
    "memory_reserved": "mem_reserved_bytes current_reserved_mem reserved memory_reserved_bytes",
    "memory_peak": """
        mem_max_allocated_bytes max_memory_allocated memory_peak peak_memory peak_gpu_memory peak_allocated_mem max_allocated mem_max
        peak_mem max_mem_allocated max_active peak_memory_usage maxmemallocated max_memory_reserved_active peak_mem_allocated
        gpu_peak_memory mem_peak""",
    "memory_peak_reserved": "max_reserved max_memory_reserved peak_reserved_mem memory_peak_reserved mem_max_reserved_bytes",
    "memory_share": "memory_max_active_pct mem_usages memory_share gpu_mem_pct",
    "memory_retries": "num_alloc_retries alloc_retries",
    "gpu_utilization": "gpu_utilization gpu_util utilization",
    "sm_clock": "sm_clock gpu_clock",
    "power": "power gpu_power power_usage powerwatts",
    "temperature": "temperature gpu_temperature gpu_temp temp",
    "cpu_memory": "cpu_memory host_memory rss cpu_mem process_memory system_memory proc_memory_rssmb",
    "loader_queue": "loader_queue queue_size dataloader_queue prefetch_queue loader_queue_size queue_depth",
    "weight_decay": "weight_decay wd",
    "momentum": "momentum mom",
    "update_rms/embedding": "rms_emb",
}
EXACT = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()} | {name: name for name in METRICS}

_LOSS = r"(?:train_)?(?:avg_|mean_)?(?:loss|lm_loss|ce_loss|cross_?entropy_?loss|cross_?entropy|nll|language_?cross_?entropy|lm_loss_value)"
_QUANTITIES = (
    ("eval_loss", rf"{_LOSS}"),
    ("eval_ppl", r"(?:lm_loss_)?(?:ppl|perplexity|language_?perplexity)"),
    ("eval_bpb", r"bpb(?:_v2)?|bits_per_byte"),
    ("eval_accuracy", r"accuracy|acc|mean_token_accuracy"),
    ("eval_time", r"runtime|time"),
)
_EVAL_HEAD = re.compile(r"^(?:metrics/|loss/)?(?P<kind>val|valid|validation|eval|evaluation|test|dev|heldout|held_out)(?:[/_]+(?P<rest>.*))?$")
_EVAL_TAIL = re.compile(r"^(?P<rest>.*?)[_/](?P<kind>validation|valid|val|eval|test)(?:_set)?(?P<after>(?:_ppl|_perplexity)?)$")
_PREFIX = re.compile(
    r"^(?:train|training|optim|optimizer|perf|performance|throughput|system|metrics|metric|learning|trainer|general|speed|log|stats|memory|mem)[/_]+(?=.)"
)
_UNIT = re.compile(
    r"\s*[(\[]\s*(ms|s|sec|secs|seconds|us|gib|gb|mib|mb|kb|bytes|b|m|k|%|pct|mhz|ghz|w|tokens|tflop/?s?(?:/[a-z]+)?|tokens/s)\s*[)\]]\s*$", re.I
)
_SUFFIX = re.compile(r"(?<=[a-z0-9])[_/ .-](ms|gib|gb|mib|mb|mhz|bytes|pct)$", re.I)
FACTORS = {
    "ms": 1e-3,
    "us": 1e-6,
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "seconds": 1.0,
    "gib": 2.0**30,
    "gb": 1e9,
    "mib": 2.0**20,
    "mb": 1e6,
    "kb": 1e3,
    "b": 1.0,
    "bytes": 1.0,
    "%": 0.01,
    "pct": 0.01,
    "mhz": 1e6,
    "ghz": 1e9,
}
_COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9}
_AUX = re.compile(r"(aux|balanc|z_?loss|zloss|mtp|router_loss|sop|moe_loss|seq_load|nsp|indexer|distill|kl_loss|moonlight)")
_ROUTER = re.compile(r"(router|expert|dropped_tokens|load_imbalance|token_drop|routing)")


def _squeeze(text: str) -> str:
    """Lower case, every run of other characters one underscore, slashes kept."""
    return re.sub(r"_*/_*", "/", re.sub(r"[^a-z0-9/]+", "_", text.lower())).strip("_/")


def _label(text: str) -> str:
    """A source's or set's own name, trimmed."""
    return text.strip(" _/-.:")


@lru_cache(maxsize=65536)
def resolve(raw: str) -> tuple[str, float]:
    """Canonical name of a trainer's metric, and the factor from its unit to the canonical one.

    `(ms)`, `(MB)`, `_gib` and the like at the end of a name give the factor; the name of an unknown metric comes back
    unchanged with factor 1.
    """
    text, factor = _without_unit(raw.strip())
    for candidate, scale in ((text, factor), (raw.strip(), 1.0)):
        found = _known(candidate)
        if found is not None:
            return found, scale if scale != 1.0 else _implied(_squeeze(candidate))
    return raw.strip(), 1.0


def scaled(value: Number, factor: float) -> Number:
    """`value * factor` without the rounding of a factor such as 0.001 that binary cannot hold."""
    return value / round(1 / factor) if 0 < factor < 1 else value * factor


def _without_unit(raw: str) -> tuple[str, float]:
    for pattern in (_UNIT, _SUFFIX):
        if found := pattern.search(raw):
            unit = found[1].lower()
            factors = _COUNTS if unit in _COUNTS and "token" in raw.lower() else FACTORS
            return raw[: found.start()], factors.get(unit, 1.0)
    return raw, 1.0


def _implied(key: str) -> float:
    """Units that certain trainers imply: Composer's memory monitor counts in GB."""
    return 1e9 if re.search(r"(current|peak)_(allocated|active|reserved|inactive)_mem$", key) else 1.0


def _known(text: str) -> str | None:
    key = _squeeze(text)
    flat = key.replace("/", "_")
    base = text.split("/", 1)[0].strip()
    if base in METRICS and (METRICS[base].family or "/" not in text):
        return text
    if found := _evaluation(text, key):
        return found
    for candidate in (flat, _PREFIX.sub("", flat), _PREFIX.sub("", _PREFIX.sub("", flat))):
        if candidate in EXACT:
            return EXACT[candidate]
    return _family(text, key)


def _evaluation(text: str, key: str) -> str | None:
    """Held-out quantities, the set's name kept: `eval_g0_loss` is `eval_loss/g0`, `lm loss validation` is `eval_loss`."""
    if head := _EVAL_HEAD.match(key):
        rest, kind = head["rest"] or "", head["kind"]
    elif tail := _EVAL_TAIL.match(key):
        rest, kind = tail["rest"] + tail["after"], tail["kind"]
        if not re.search(r"loss|ppl|perplexity|accuracy|acc$|entropy|bpb", rest):
            return None
    else:
        return None
    default = "test" if kind == "test" else ""
    flat = rest.replace("/", "_")
    for name, words in _QUANTITIES:
        if re.fullmatch(words, flat):
            return f"{name}/{default}" if default else name
    for name, words in _QUANTITIES:
        if found := re.fullmatch(rf"(?:{words})_(?P<set>.+)", flat) or re.fullmatch(rf"(?P<set>.+?)_(?:{words})", flat):
            label = _original(text, found["set"])
            return f"{name}/{default}-{label}" if default else f"{name}/{label}"
    return None


def _original(text: str, label: str) -> str:
    """The label as the trainer spelt it."""
    pattern = re.sub(r"_", "[^A-Za-z0-9]+", re.escape(label).replace(r"\_", "_"))
    found = re.search(pattern, text, re.I)
    return _label(found[0] if found else label)


def _family(text: str, key: str) -> str | None:
    """Members of families: losses per source, auxiliary losses, norms of parts."""
    parts = key.split("/")
    if parts[0] in ("train", "training", "metrics", "loss_metrics", "optim") and len(parts) > 1:
        parts, text = parts[1:], text.split("/", 1)[1]
    last = parts[-1]
    if _AUX.search(key) and ("loss" in key or "mtp" in key):
        return "aux_loss/" + (_label(re.sub(r"(?i)[ _/-]*loss$", "", text)) or "aux")
    if len(parts) > 1:
        head, rest = parts[0], _label(text.split("/", 1)[1])
        if head in (
            "loss",
            "train_loss",
            "ce_loss",
            "lm_loss",
            "loss_by_source",
            "loss_by_domain",
            "domain_loss",
            "source_loss",
            "loss_per_source",
            "losses",
            "crossentropyloss",
            "src_loss",
        ):
            return f"train_loss/{rest}"
        if last in ("loss", "ce_loss", "lm_loss", "crossentropyloss") and head in ("source", "domain", "domains", "sources"):
            return f"train_loss/{_label(rest.rsplit('/', 1)[0])}"
        if head in EXACT and METRICS[EXACT[head].split("/", 1)[0]].family and head != "norm":
            return f"{EXACT[head]}/{rest}"
    if _ROUTER.search(key):
        return f"router/{_label(text)}"
    if re.search(r"(logit|lse|logsumexp)", key) and "loss" not in key:
        return f"logit_norm/{_label(text)}"
    if re.match(r"(grad_norm|gradient_norm|l2_norm_grad|grad_l2_norm)_", parts[0] if len(parts) == 1 else "_".join(parts)):
        return f"grad_norm/{_label(re.sub(r'(?i)^(l2_norm/)?(grad(ient)?[ _/-]?(norm)?)[ _/-]*', '', text))}"
    if found := re.fullmatch(r"(?:lr|learning_rate)_(.+)", "_".join(parts)):
        return f"learning_rate/{_original(text, found[1])}"
    return None


def is_known(name: str) -> bool:
    """Whether the name belongs to the canonical vocabulary."""
    return name in METRICS or (("/" in name) and (family := METRICS.get(name.split("/", 1)[0])) is not None and family.family)


def unit_of(name: str) -> str:
    """Unit of a canonical metric; `1` for a name that is kept as written."""
    known = METRICS.get(name) or METRICS.get(name.split("/", 1)[0])
    return known.unit if known else "1"


def panel_of(name: str) -> str:
    """quality, stability, performance or resources; empty for a name that is kept as written."""
    known = METRICS.get(name) or METRICS.get(name.split("/", 1)[0])
    return known.panel if known else ""
