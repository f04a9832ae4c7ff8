"""Rules between the keys of a configuration.

Each rule is a function that raises InvalidRequest for a configuration that breaks it. The modules group the rules by
subject. This module orders them, because a user sees the first broken rule. The rules read shapes, schedules and
folders, and import no torch. suite.runner.machine_memory checks the memory of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suite.config.places import check_parts
from suite.config.run import RunConfig
from suite.config.sources import check_sources
from suite.config.validate import batch, executor, experiment, launch, order, stream, training
from suite.core.keys import in_config_keys

Rule = Callable[[RunConfig], None]


def plugins_fit_their_places(config: RunConfig) -> None:
    """Each class exists, has the type that its place requires, and takes its arguments (suite.config.places)."""
    check_parts(config.plain())


def classes_of_ranks_exist(config: RunConfig) -> None:
    """Each class that only ranks import exists in its source and takes its arguments (suite.config.sources)."""
    if config.executor.starts_ranks:
        check_sources(config)


PLUGINS: Sequence[Rule] = (
    plugins_fit_their_places,
    classes_of_ranks_exist,
    executor.graph_system_has_graph_executor,
    executor.language_model_is_simulated,
    experiment.panels_name_config_keys,
)
LAUNCH: Sequence[Rule] = (
    launch.ranks_fit_launch,
    launch.heartbeats_fit_timeout,
    launch.srun_has_places,
    launch.transport_suits_launch,
    launch.torchrun_does_not_bind,
    launch.cuda_has_no_memory_limit,
    launch.draws_where_it_computes,
)
PIPELINE: Sequence[Rule] = (
    *PLUGINS,
    order.pytorch_pipeline_has_its_order,
    order.schedule_is_the_systems_own,
    order.order_of_peer_has_no_parameters,
    order.grid_has_systems_processes,
    order.microbatches_fill_pipeline,
    order.microbatches_fill_rounds,
    executor.resumed_run_trains_in_its_own_ranks,
    executor.resumed_system_has_checkpoints,
)
RANKS: Sequence[Rule] = (
    *PIPELINE,
    batch.system_splits_layers,
    batch.batch_is_whole_microbatches,
    batch.batch_has_systems_microbatches,
    *LAUNCH,
)
TRAINING: Sequence[Rule] = (
    batch.split_layers_are_transformers,
    batch.system_trains_network,
    batch.microbatch_suits_batch_norms,
    batch.stages_have_layers,
    training.learning_rate_is_not_negative,
    training.half_precision_is_known,
    training.layout_has_precision,
    training.loss_scale_is_built,
    training.system_prunes,
    training.layout_compresses_pruned_states,
    training.pruning_leaves_weights,
    batch.stages_have_whole_checkpoints,
    executor.replayed_system_is_on_engine,
    stream.policy_serves_placement,
    stream.policy_serves_pipeline,
    stream.smoothed_prediction_has_momentum,
    stream.prediction_has_states_on_device,
    stream.system_streams,
    stream.stream_has_no_tied_layers,
    stream.stream_clips_no_gradients,
    stream.stream_has_constant_loss_scale,
    stream.stream_fills_pipeline,
    batch.schedule_obeys_order_laws,
    training.data_folder_has_its_form,
    training.data_source_fits,
    training.network_reads_data,
)


def rules_of(config: RunConfig, executor_accepts: Rule) -> Sequence[Rule]:
    """The rules that apply to a run, in order. executor_accepts: rules of the executor's class."""
    if config.executor.kind == "full_graph":
        return (*PLUGINS, executor_accepts, *LAUNCH, training.learning_rate_is_not_negative)
    if not config.executor.starts_ranks:
        return (*PIPELINE, executor_accepts)
    return (*RANKS, *TRAINING) if config.executor.trains else (*RANKS, executor_accepts)


@in_config_keys()
def check(config: RunConfig, executor_accepts: Rule) -> None:
    """Raises InvalidRequest for the first rule that the configuration breaks, and IllegalSchedule for its schedule.

    executor_accepts: the rules of the executor's own class, which raises InvalidRequest too
    """
    for rule in rules_of(config, executor_accepts):
        rule(config)
