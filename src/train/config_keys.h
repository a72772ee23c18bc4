// The table of all configuration keys: name, field, what is accepted, what it means.
//
// A group stands after the other keys of its section, so that help and documentation read well.
//
// A visitor is called as visit(name, field, accept, help) for a key and visit.section(name, field, help) for a group of keys.
#pragma once

#include <concepts>

#include "base/yaml.h"
#include "train/config.h"

namespace hyperparallel::train {

// C is T or const T: readers change the fields, printers do not.
template <class C, class T>
concept Is = std::same_as<std::remove_const_t<C>, T>;

// What a key accepts beyond its type.
struct Accept {
  yaml::Range range = {};
  const char* unit = "";
};

inline Accept at_least(double min, const char* unit = "") {
  return {{.min = min}, unit};
}
inline Accept above(double min, const char* unit = "") {
  return {{.min = min, .above = true}, unit};
}
inline Accept between(double min, double max, const char* unit = "") {
  return {{.min = min, .max = max}, unit};
}
inline Accept any(const char* unit = "") {
  return {{}, unit};
}

template <class V, Is<models::Initialisation> C>
void visit_keys(V& visit, C& c) {
  visit("std", c.std, at_least(0), "standard deviation of every normal start; 0 means the model's initializer_range");
  visit("engram_std", c.engram_std, at_least(0), "standard deviation of the Engram tables; 0 means `std`");
  visit("attention_sink", c.attention_sink, any(), "start of the attention sinks");
  visit("hc_scale", c.hc_scale, any(), "start of hc_*_scale");
  visit("hc_post_base", c.hc_post_base, any(), "start of the post part of hc_*_base; 0: an output enters its stream once");
  visit("hc_comb_diagonal", c.hc_comb_diagonal, any(), "diagonal of the comb part of hc_*_base; large: streams start unmixed");
}

template <class V, Is<ModelSection> C>
void visit_keys(V& visit, C& c) {
  auto& switches = c.switches;
  visit("config", c.config, any(), "config.json of the model; its keys may stand inline in this section instead");
  visit("weights", c.weights, any(), "folder of a Hugging Face checkpoint to start from; nothing: random start");
  visit("cache_quantisation", switches.cache_quantisation, any(),
        "FP8 and FP4 fake quantisation of window KV, compressed KV and indexer");
  visit("candidates", switches.candidates, any(),
        "candidate pool: index sources after the candidate source search in its blocks alone");
  visit("engram_storage", switches.engram_storage, any(),
        "where Engram tables live: `device`: parameters like others; `host`: rows in memory, `mmap`: in a file, each with one "
        "owner, and "
        "only rows that tokens use cost anything");
  visit("engram_folder", c.engram_folder, any(), "folder of the files of `mmap`, which have no names there; empty: train.output");
  visit.section("initialisation", switches.initialisation, "starting values that the published reports leave open");
}

template <class V, Is<DataSource> C>
void visit_keys(V& visit, C& c) {
  visit("path", c.path, any(), "a JSONL file");
  visit("weight", c.weight, at_least(0),
        "share of the samples drawn from this file, relative to the others; 0: its number of samples");
}

template <class V, Is<ImageSection> C>
void visit_keys(V& visit, C& c) {
  visit("exif", c.exif, any(), "whether a picture is turned as its EXIF orientation says");
}

template <class V, Is<DataSection> C>
void visit_keys(V& visit, C& c) {
  visit("tokenizer", c.tokenizer, any(), "tokenizer.json");
  visit("train", c.train, any(), "training files: paths, or {path, weight}");
  visit("validation", c.validation, any(), "validation files");
  visit("test", c.test, any(), "test files, for `eval`");
  visit("seq_len", c.seq_len, at_least(2, "tokens"), "length of one row");
  visit("supervise", c.supervise, any(), "which assistant turns are trained on; a message's own `train` flag wins");
  visit("over_long", c.over_long, any(), "what becomes of a sample longer than a row");
  visit("bad_line", c.bad_line, any(), "what becomes of a line that cannot be read; skipped ones are counted and logged");
  visit("bad_image", c.bad_image, any(), "what becomes of a sample with a picture that cannot be read");
  visit("packing", c.packing, any(), "put several samples into one row; each remains a document of its own");
  visit("shuffle", c.shuffle, any(), "another order in each epoch, drawn from train.seed");
  visit("workers", c.workers, between(0, 256, "threads"),
        "background threads that prepare rows; the order does not depend on it");
  visit("tool_text", c.tool_text, any(), "file with the fixed texts around tool schemas and response formats");
  visit("thinking", c.thinking, any(), "encode conversations in thinking mode unless a sample says otherwise");
  visit("drop_thinking", c.drop_thinking, any(), "leave out the reasoning of earlier turns");
  visit("allow_http", c.allow_http, any(), "fetch pictures by http; not finished, must be false");
  visit.section("image", c.image, "pictures; their sizes follow from vision_config");
}

template <class V, Is<PlanOverride> C>
void visit_keys(V& visit, C& c) {
  visit("match", c.match, any(), "glob of parameter names");
  visit("role", c.role, any(), "role to give them");
}

template <class V, Is<ParallelSection> C>
void visit_keys(V& visit, C& c) {
  const Accept degree = at_least(-1, "ranks");
  visit("fsdp_replicate", c.fsdp_replicate, degree, "HSDP replicas: groups of shards that hold the same");
  visit("fsdp_shard", c.fsdp_shard, degree,
        "FSDP shards of parameters, gradients and optimizer; -1: the ranks that the others leave");
  visit(
      "reshard_after_forward", c.reshard_after_forward, any(),
      "free gathered parameters after forward and gather them again for backward, and reduce gradients after every micro-batch");
  visit("tp", c.tp, degree, "tensor parallel degree: attention heads and vocabulary");
  visit("sequence_parallel", c.sequence_parallel, any(),
        "cut the residual streams over tp between the regions that need all tokens");
  visit("cp", c.cp, degree,
        "context parallel degree: ranks that share the tokens of a micro-batch; a part of fsdp_replicate x fsdp_shard");
  visit("cp_shard", c.cp_shard, any(),
        "which tokens: consecutive ones, or a chunk from the head and one from the tail, so that all have equal causal work");
  visit("ep", c.ep, degree, "expert parallel degree: experts and Engram rows; -1: all ranks");
  visit("pp", c.pp, degree, "pipeline stages");
  visit("vision_ulysses", c.vision_ulysses, degree, "ranks that share the attention of one picture; -1: as many as tp");
  visit("timeout", c.timeout, above(0, "s"),
        "how long a rank waits for others in one exchange, at the start and at the end; then it says who is missing, and ends");
  visit("plan_overrides", c.plan_overrides, any(), "other roles for parameters: {match, role}");
}

template <class V, Is<KernelsSection> C>
void visit_keys(V& visit, C& c) {
  visit("attention", c.attention, any(), "CSA2 attention");
  visit("indexer", c.indexer, any(), "index scores, top-k and candidates");
  visit("gate", c.gate, any(), "router scores, choice of experts and their weights");
  visit("moe", c.moe, any(), "experts");
  visit("mhc", c.mhc, any(), "residual streams");
  visit("engram", c.engram, any(), "Engram gate");
  visit("attention_chunk", c.attention_chunk, at_least(0, "queries"), "queries per pass of the attention, at most; 0: 128");
  visit("index_chunk", c.index_chunk, at_least(0, "scores"),
        "scores over all heads that a pass of the indexer holds, at most; 0: 8388608");
  visit("cross_entropy_chunk", c.cross_entropy_chunk, at_least(0, "tokens"), "tokens per pass of the loss, at most; 0: 1024");
}

template <class V, Is<RecomputeSection> C>
void visit_keys(V& visit, C& c) {
  visit("mode", c.mode, any(), "keep all values for backward, recompute all, or recompute all but those of `keep`");
  visit("every", c.every, at_least(1, "layers"), "layers between two kept boundaries");
  visit("keep", c.keep, any(), "globs of value names that `selective` keeps");
  visit("regather", c.regather, any(),
        "globs of exchange names whose results are exchanged again for backward rather than held: less memory, more traffic");
  visit("offload", c.offload, any(),
        "globs of value names that rest in a file between forward and backward, `layers.*.streams` for the borders of layers");
  visit("offload_folder", c.offload_folder, any(), "where that file lies, which has no name there; empty: train.output");
}

template <class V, Is<OptimizerGroup> C>
void visit_keys(V& visit, C& c) {
  visit("match", c.match, any(), "glob of parameter names; later groups win");
  visit("optimizer", c.optimizer, any(),
        "update rule of these parameters: `muon` for matrices, `sinkhorn` for tables, `sparse_adam` for tables outside of device "
        "memory (model.engram_storage)");
  visit("lr_scale", c.lr_scale, at_least(0), "factor of the learning rate");
  visit("weight_decay", c.weight_decay, at_least(0), "instead of optimizer.weight_decay");
  visit("schedule", c.schedule, any(), "name of one of optimizer.schedules, instead of optimizer.schedule");
}

template <class V, Is<ScheduleSection> C>
void visit_keys(V& visit, C& c) {
  visit("kind", c.kind, any(),
        "`linear_floor` falls towards 0 at total_steps and stops at min_lr, `linear_to_min` falls straight to min_lr, `cosine` "
        "falls to "
        "min_lr; `wsd_*` stay flat until stable_until and reach min_lr at decay_until");
  visit("warmup_steps", c.warmup_steps, at_least(0, "steps"), "linear rise from start_lr");
  visit("warmup_counts_from", c.warmup_counts_from, any(), "`one`: the first step already has a share; `start`: it has start_lr");
  visit("start_lr", c.start_lr, at_least(0), "rate at the beginning of the warmup");
  visit("min_lr", c.min_lr, at_least(0), "rate at the end of the decay");
  visit("total_steps", c.total_steps, at_least(0, "steps"), "where linear and cosine decay end; 0: train.steps");
  visit("decay_ratio", c.decay_ratio, Accept{{.min = 0, .max = 1, .above = true}},
        "part of total_steps at which `cosine` reaches min_lr");
  visit("stable_until", c.stable_until, at_least(0, "steps"), "`wsd_*`: last step of the flat part");
  visit("decay_until", c.decay_until, at_least(0, "steps"), "`wsd_*`: step that reaches min_lr; 0: total_steps");
}

template <class V, Is<NamedSchedule> C>
void visit_keys(V& visit, C& c) {
  visit("name", c.name, any(), "by which groups name it");
  visit("lr", c.lr, at_least(0), "base learning rate; 0: optimizer.lr");
  visit_keys(visit, static_cast<std::conditional_t<std::is_const_v<C>, const ScheduleSection, ScheduleSection>&>(c));
}

template <class V, Is<MuonSection> C>
void visit_keys(V& visit, C& c) {
  visit("momentum", c.momentum, Accept{{.min = 0, .max = 0.99999}}, "decay of the sum of gradients");
  visit("update_scale", c.update_scale, at_least(0), "root mean square of an update of full rank, in learning rates");
  visit("head_wise", c.head_wise, any(),
        "matrices whose rows are heads or groups are updated one by one, as the model declares; false: as a whole");
  visit("dtype", c.dtype, any(), "of the Newton-Schulz products; bfloat16 errs by about 2 % of an update");
}

template <class V, Is<SinkhornSection> C>
void visit_keys(V& visit, C& c) {
  visit("momentum", c.momentum, Accept{{.min = 0, .max = 0.99999}}, "decay of the mean of gradients");
  visit("update_scale", c.update_scale, at_least(0), "root mean square of an update, in learning rates");
  visit("steps", c.steps, between(1, 1000, "divisions"), "divisions of rows and columns in turn, rows first");
  visit("threshold", c.threshold, at_least(0), "rows stand still whose norm is at most this part of the mean");
}

template <class V, Is<SparseAdamSection> C>
void visit_keys(V& visit, C& c) {
  visit("betas", c.betas, Accept{{.min = 0, .max = 0.99999}}, "decay of the two moments, in steps that use the row");
  visit("eps", c.eps, at_least(0), "added to the uncorrected root of the second moment");
}

template <class V, Is<OptimizerSection> C>
void visit_keys(V& visit, C& c) {
  visit("name", c.name, any(),
        "`adamw` for all parameters; `muon`: the mix that the model declares - Muon for matrices, Sinkhorn balancing for tables, "
        "AdamW for the rest");
  visit("lr", c.lr, at_least(0), "base learning rate");
  visit("betas", c.betas, Accept{{.min = 0, .max = 0.99999}}, "decay of the two moments");
  visit("eps", c.eps, at_least(0), "added to the root of the second moment");
  visit("weight_decay", c.weight_decay, at_least(0),
        "decoupled decay: with `adamw` of parameters with two or more dimensions, with `muon` of matrices and gains");
  visit("moments", c.moments, any(),
        "type in which AdamW keeps its two moments; bfloat16 halves their memory and rounds each by up to 2^-9");
  visit("state_storage", c.state_storage, any(),
        "where moments and momenta are between updates: `memory`, or `mmap`, files that are fetched before an update and leave "
        "memory after it");
  visit("state_folder", c.state_folder, any(), "folder of these files, which have no names there; empty: train.output");
  visit("groups", c.groups, any(), "other settings for some parameters: {match, optimizer, lr_scale, weight_decay, schedule}");
  visit("schedules", c.schedules, any(),
        "other schedules, for groups that name them: {name, lr, and the keys of optimizer.schedule}");
  visit("max_norm", c.max_norm, at_least(0), "global gradient norm above which gradients are scaled down; 0: never");
  visit("router_bias_rate", c.router_bias_rate, at_least(0), "change of a router bias per step");
  visit.section("muon", c.muon, "of parameters under Muon");
  visit.section("sinkhorn", c.sinkhorn, "of parameters under Sinkhorn balancing");
  visit.section("sparse_adam", c.sparse_adam, "of tables under SparseAdam");
  visit.section("schedule", c.schedule, "learning rate over the steps");
}

template <class V, Is<BatchStage> C>
void visit_keys(V& visit, C& c) {
  visit("until_step", c.until_step, at_least(1, "steps"), "last step of the stage");
  visit("global_batch_size", c.global_batch_size, at_least(1, "rows"), "rows of its steps");
}

template <class V, Is<LengthStage> C>
void visit_keys(V& visit, C& c) {
  visit("until_step", c.until_step, at_least(1, "steps"), "last step of the stage");
  visit("seq_len", c.seq_len, at_least(1, "tokens"), "tokens of a row of its steps");
}

template <class V, Is<DraftLossSection> C>
void visit_keys(V& visit, C& c) {
  visit("weight", c.weight, at_least(0), "of the whole; 0: the draft layers are not built");
  visit("cross_entropy", c.cross_entropy, at_least(0), "weight of the cross-entropy of the next token");
  visit("distance", c.distance, at_least(0), "weight of the L1 distance of the draft's distribution from the model's own");
  visit("confidence", c.confidence, at_least(0), "weight of the binary cross-entropy of the confidence logit");
  visit("confidence_target", c.confidence_target, any(),
        "what it is to foretell: 1 - distance / 2, the share of drafts that would be accepted, or whether the likeliest token is "
        "right");
  visit("decay", c.decay, at_least(0, "slots"), "a slot weighs exp(-slot / decay); 0: all alike");
  visit("anchors", c.anchors, at_least(0, "positions"), "of a document, where a block begins, at most; 0: all positions");
}

template <class V, Is<LossSection> C>
void visit_keys(V& visit, C& c) {
  visit("z", c.z, at_least(0), "weight of the squared log(sum of exp) of a token's logits; 0: without it");
  visit("balance", c.balance, at_least(0), "weight of the balance of experts within a sequence; 0: without it");
  visit("indexer", c.indexer, at_least(0),
        "weight of the divergence of index scores from attention, which trains the indexer and nothing else; 0: the indexer "
        "stands still");
  visit("indexer_teacher", c.indexer_teacher, any(),
        "which attention it follows: that over chosen groups and sink, or over the window as well, cut to the chosen groups");
  visit("indexer_dense", c.indexer_dense, any(),
        "dense warm-up: attention and the indexer's loss go over all groups instead of chosen ones; with train.trainable "
        "`*.attn.indexer.*` the rest stands still");
  visit.section("draft", c.draft, "of the draft layers (num_nextn_predict_layers), which reaches nothing but them");
}

template <class V, Is<TrainSection> C>
void visit_keys(V& visit, C& c) {
  visit("steps", c.steps, at_least(1, "steps"), "optimizer steps of the whole run");
  visit("output", c.output, any(), "folder of the run; one that holds a checkpoint is continued");
  visit("restart", c.restart, any(), "begin anew although the folder holds a checkpoint");
  visit("seed", c.seed, at_least(0), "of initialisation and data order");
  visit("local_batch_size", c.local_batch_size, at_least(1, "rows"), "rows of one micro-batch");
  visit("global_batch_size", c.global_batch_size, at_least(1, "rows"),
        "rows of one optimizer step over all ranks and micro-batches");
  visit("batch_ramp", c.batch_ramp, any(),
        "other sizes for the first steps, by entries in order: {until_step, global_batch_size}");
  visit(
      "length_ramp", c.length_ramp, any(),
      "shorter rows for the first steps, by entries in order: {until_step, seq_len}; data.over_long says what becomes of samples "
      "that are longer");
  visit("dtype", c.dtype, any(),
        "of computation; masters, optimizer and sums are float32. float64: all of them, to measure the rounding of the others");
  visit("threads", c.threads, between(0, 1024, "threads"),
        "compute threads of a rank; 0: the hardware threads that the launcher bound it to, or its share where ranks share them");
  visit("deterministic", c.deterministic, any(), "the same bits in every run of the same layout");
  visit("max_seconds", c.max_seconds, at_least(0, "seconds"), "save and stop after this time; 0: no limit");
  visit("non_finite", c.non_finite, any(), "what a loss or norm that is not finite does to the run");
  visit("max_skips", c.max_skips, at_least(1, "steps"), "steps skipped in a row after which the run ends");
  visit("trainable", c.trainable, any(), "globs of the parameters that learn, `mtp.*` for draft layers alone; empty: all do");
  visit.section("loss", c.loss, "losses beside the cross-entropy, of models that have what they are for");
}

template <class V, Is<ValidationSection> C>
void visit_keys(V& visit, C& c) {
  visit("interval", c.interval, at_least(0, "steps"), "steps between validations; 0: none");
  visit("steps", c.steps, at_least(0, "batches"), "global batches per validation; 0: the whole set");
  visit("generate_samples", c.generate_samples, at_least(0, "samples"),
        "first samples of data.validation that are answered after each validation and at the end, for the report");
  visit("max_new_tokens", c.max_new_tokens, at_least(1, "tokens"), "longest answer to them");
}

template <class V, Is<CheckpointSection> C>
void visit_keys(V& visit, C& c) {
  visit("interval", c.interval, at_least(0, "steps"), "steps between checkpoints; 0: at the end alone");
  visit("keep_latest_k", c.keep_latest_k, at_least(0, "checkpoints"), "older ones are removed; 0: none is");
  visit("async_mode", c.async_mode, any(), "write in the background");
  visit("load_step", c.load_step, at_least(-1), "checkpoint to continue from; -1: the latest");
  visit("fall_back", c.fall_back, any(), "continue from an older checkpoint when the latest is damaged");
  visit("export_hf", c.export_hf, any(), "write OUT/hf/step-N at the end of the run, a Hugging Face folder in train.dtype");
}

template <class V, Is<LoggingSection> C>
void visit_keys(V& visit, C& c) {
  visit("interval", c.interval, at_least(1, "steps"), "steps between progress lines");
  visit("tensorboard", c.tensorboard, any(), "write TensorBoard events beside metrics.jsonl");
}

template <class V, Is<ProfileSection> C>
void visit_keys(V& visit, C& c) {
  visit("start", c.start, at_least(1), "first profiled step");
  visit("steps", c.steps, at_least(0, "steps"), "profiled steps, written to OUT/traces; 0: none");
  visit("kernels", c.kernels, any(), "also record the tasks of mega kernels (`hyperparallel inspect trace`)");
  visit("memory", c.memory, any(), "also record the memory high-water mark of each segment");
}

template <class V, Is<DebugSection> C>
void visit_keys(V& visit, C& c) {
  visit("check_contracts", c.check_contracts, any(),
        "compare what several ranks must have alike, at the borders of all layers and before every step, and stop where it "
        "differs");
  visit("check_ledger", c.check_ledger, any(),
        "compare the ledger with the bytes alive after each action of a step, and stop where they differ");
  visit("dump_batches", c.dump_batches, at_least(0, "batches"),
        "first micro-batches that are written to OUT/debug as safetensors: tokens, labels, positions, documents, pictures");
}

template <class V, Is<Config> C>
void visit_keys(V& visit, C& c) {
  visit.section("model", c.model, "the architecture and how it starts");
  visit.section("data", c.data, "files, tokens, pictures, rows");
  visit.section("parallel", c.parallel, "the layout over ranks");
  visit.section("kernels", c.kernels, "the fastest implementation of each operation that may be taken (`hyperparallel inspect kernels`)");
  visit.section("recompute", c.recompute, "values recomputed in backward instead of kept");
  visit.section("optimizer", c.optimizer, "how parameters change");
  visit.section("train", c.train, "length, batch, numerics, output");
  visit.section("validation", c.validation, "measures on held-out data during training");
  visit.section("checkpoint", c.checkpoint, "saving and resuming");
  visit.section("logging", c.logging, "what a run reports");
  visit.section("profile", c.profile, "traces of a few steps");
  visit.section("debug", c.debug, "slow checks");
}

}  // namespace hyperparallel::train
