//! What every backend must do: one suite, run against each.
//!
//! A test is a function over [`Database`], which is a SQLite file or a database of a throw-away PostgreSQL; it is listed once, below. Those of
//! queries are over [`Queried`], which may be a MariaDB as well.
//! [`replica::Replica`] plays the remote: it keeps rows in memory and syncs through the engines as the server does, so that a test
//! reads as a story.

mod altered;
mod attached;
mod both_ways;
mod client_sql;
mod conflicts;
mod counters;
mod counting;
mod database;
mod ddl;
mod deferred;
mod encodings;
mod equality;
mod estimate;
mod exactly_once;
mod exposure;
mod generated;
mod grants;
mod incarnation;
mod key_forms;
mod kin;
mod life;
mod logged;
mod mariadb;
mod mariadb_tls;
mod mark_states;
mod moved;
mod next_version;
mod orders;
mod packing;
mod partitions;
mod parts;
mod passing;
mod plain;
mod purge;
mod queried;
mod races;
mod raised;
mod rebuilt;
mod refresh;
mod refusals;
mod replica;
mod results;
mod sessions;
mod settings;
mod shapes;
mod shared;
mod splitting;
mod swaps;
mod system;
mod table_identity;
mod tracking;
mod types;
mod values;
mod watch;
mod watermarks;
mod widened;
mod world;

use database::Database;
use queried::Queried;

macro_rules! contract {
    ($sqlite:ident, $postgres:ident, $database:ident: $($module:ident::$test:ident),* $(,)?) => {
        mod $sqlite {
            use super::*;
            $(#[test] fn $test() { $module::$test(&Database::sqlite()); })*
        }
        mod $postgres {
            use super::*;
            $(#[test] fn $test() { $module::$test(&Database::$database()); })*
        }
    };
}

/// For tests that need many databases.
macro_rules! contract_with_many {
    ($($module:ident::$test:ident),* $(,)?) => {
        mod sqlite_many {
            use super::*;
            $(#[test] fn $test() { $module::$test(&Database::sqlite); })*
        }
        mod postgres_many {
            use super::*;
            $(#[test] fn $test() { $module::$test(&Database::postgres); })*
        }
    };
}

contract_with_many! {
    orders::a_valid_upload_is_applied_whole,
    orders::exactly_what_is_at_fault_is_refused,
    orders::a_valid_outcome_of_conflicts_is_applied_whole,
    kin::whatever_is_written_arrives,
    both_ways::what_goes_straight_ends_as_by_the_way_of_all_others,
    key_forms::numbers_of_other_spellings_are_set_aside,
    key_forms::a_row_stays_whose_key_a_remote_spells_otherwise,
    generated::a_generated_column_is_computed_at_the_database,
    swaps::values_that_are_referred_to_change_places_or_are_set_aside,
}

mod postgres_alone_many {
    use super::*;
    #[test]
    fn keys_that_a_type_rounds_are_set_aside() {
        key_forms::keys_that_a_type_rounds_are_set_aside(&Database::postgres);
    }
    #[test]
    fn a_deferrable_key_is_named_by_check_and_by_the_refusal() {
        deferred::a_deferrable_key_is_named_by_check_and_by_the_refusal(&Database::postgres);
    }
    #[test]
    fn an_altered_table_takes_what_is_uploaded() {
        shapes::an_altered_table_takes_what_is_uploaded(&Database::postgres);
    }
}

/// For what one of the databases has and the other has not.
macro_rules! contract_of {
    ($name:ident, $database:ident: $($module:ident::$test:ident),* $(,)?) => {
        mod $name {
            use super::*;
            $(#[test] fn $test() { $module::$test(&Database::$database()); })*
        }
    };
}

contract! {
    sqlite_purge, postgres_purge, postgres_alone:
    purge::a_remote_that_is_new_enough_is_given_what_it_has_not_seen,
    purge::a_remote_below_the_horizon_starts_afresh_and_keeps_what_is_pending,
    purge::a_download_that_has_begun_is_not_disturbed,
    purge::a_transaction_open_at_the_note_is_not_purged,
    purge::side_tables_do_not_grow,
    purge::a_horizon_ends_with_its_incarnation,
    purge::a_purge_that_is_stopped_goes_on_later,
    purge::only_what_is_old_is_purged,
    shared::what_is_older_than_the_horizon_is_given_up,
    watch::an_old_mark_is_good_for_nothing_once_changes_are_purged,
}

contract! {
    sqlite, postgres, postgres:
    tracking::what_an_application_writes_reaches_a_remote,
    tracking::upserts_cascades_and_key_changes_are_tracked,
    tracking::a_row_that_lives_on_elsewhere_is_told_from_a_deleted_one,
    tracking::statements_of_the_dialect_are_tracked,
    tracking::an_upsert_that_does_nothing_deletes_nothing,
    tracking::broken_tracking_is_noticed_and_mended,
    tracking::tracking_again_changes_nothing,
    tracking::untracked_tables_are_left_as_they_were,
    counters::what_two_remotes_take_is_taken_twice,
    counters::the_same_beside_a_counter_leaves_the_total,
    moved::what_scripts_made_comes_down_after_a_lost_download,
    moved::what_a_script_does_not_insert_goes,
    counters::many_at_once_and_one_that_comes_again,
    counters::a_total_that_the_database_refuses_is_set_aside,
    counters::beside_a_conflict_and_a_deletion,
    counters::where_a_script_says_what_comes_down,
    counters::only_what_is_added_up_exactly_can_be_a_counter,
    partitions::a_row_that_moves_between_held_partitions_is_never_deleted,
    partitions::a_row_that_leaves_is_deleted_at_the_remote,
    partitions::a_row_without_a_partition_is_sent_to_nobody,
    partitions::joining_and_leaving_partitions,
    partitions::memberships_are_read_in_the_downloads_snapshot,
    partitions::a_partition_that_the_memberships_return_twice_comes_once,
    partitions::a_membership_that_is_too_large_to_travel_is_left_out,
    equality::a_spelling_that_is_too_large_to_travel_does_not_come_down,
    equality::texts_without_case_are_one_partition,
    equality::texts_of_a_collation_are_one_partition,
    equality::a_collation_of_the_membership_query_decides_nothing,
    equality::blanks_at_the_end_make_no_other_partition,
    equality::references_of_another_equality_are_left_to_the_database,
    equality::zeros_at_the_end_make_no_other_partition,
    key_forms::children_stay_whose_parent_a_remote_spells_otherwise,
    watermarks::what_was_seen_is_not_sent_again,
    watermarks::a_transaction_that_commits_late_is_not_missed,
    watermarks::watermarks_of_another_database_are_refused,
    watermarks::own_changes_are_not_sent_back_unless_the_database_changed_them,
    incarnation::a_count_that_is_ahead_begins_a_new_incarnation,
    incarnation::a_remote_without_its_row_looks_like_a_backup,
    incarnation::a_download_is_counted_after_its_snapshot,
    incarnation::downloads_are_counted_together,
    incarnation::a_download_that_brings_nothing_need_not_be_counted,
    incarnation::what_a_remote_only_says_begins_no_incarnation,
    incarnation::a_copy_keeps_its_watermarks,
    incarnation::a_count_of_the_same_number_elsewhere_is_no_count_of_this_one,
    incarnation::lost_answers_begin_no_incarnation,
    incarnation::tables_of_an_earlier_version_get_what_they_lack,
    life::nothing_spans_two_incarnations,
    life::a_count_below_the_one_presented_is_no_count,
    next_version::a_column_more_sends_no_row_again,
    next_version::the_version_before_leaves_the_column_alone,
    next_version::what_has_a_value_in_new_columns_comes,
    conflicts::each_rule_ends_an_update_against_an_update,
    conflicts::each_rule_ends_an_insert_of_an_existing_key,
    conflicts::an_existing_key_among_new_ones_is_found_batch_by_batch,
    conflicts::each_rule_ends_updates_against_deletions,
    conflicts::a_change_whose_result_is_there_is_no_conflict,
    conflicts::a_result_that_is_there_in_another_spelling_comes_back,
    conflicts::another_spelling_comes_back_after_a_lost_download,
    conflicts::a_zero_of_the_other_sign_comes_back,
    conflicts::conflicts_are_on_record,
    conflicts::newer_wins_in_every_order_of_arrival,
    both_ways::updates_and_deletions_go_straight_and_do_not_come_back,
    both_ways::among_other_changes_they_do_not_come_back_either,
    both_ways::what_a_cascade_takes_along_is_sent,
    both_ways::a_strangers_row_does_not_come_over,
    exactly_once::a_repeated_upload_gets_the_same_receipt,
    exactly_once::a_copy_and_a_lost_upload_are_told_apart,
    exactly_once::a_number_that_is_given_up_is_used_up,
    exactly_once::a_second_sync_of_a_remote_is_told_to_come_back,
    exactly_once::an_insert_that_loses_a_race_is_judged,
    exactly_once::a_malformed_upload_changes_nothing,
    splitting::a_few_bad_rows_cost_a_few_statements,
    splitting::a_valid_upload_costs_a_few_statements_whatever_its_order,
    splitting::an_upload_that_is_all_bad_costs_statements_in_proportion,
    deferred::a_commit_that_is_refused_whatever_is_applied_blocks_nothing,
    refusals::one_refused_row_does_not_hold_up_the_rest,
    refusals::each_kind_of_refusal_has_its_code,
    refusals::rows_outside_the_partitions_are_refused_and_nothing_is_told,
    refusals::rows_swallowed_by_a_trigger_are_refused,
    refusals::rows_given_another_key_by_a_trigger_are_not_two_rows,
    refusals::unique_values_can_change_places,
    refusals::rows_may_refer_to_one_another_in_any_order,
    refusals::a_constraint_checked_at_the_end_finds_its_culprit,
    refusals::deletions_go_from_children_to_parents,
    refusals::a_child_that_leaves_a_deleted_parent_survives,
    refusals::a_deletion_of_a_row_that_is_referred_to_is_refused_alone,
    types::values_come_back_exactly,
    types::the_ends_of_time_come_back_exactly,
    types::random_rows_come_back_exactly,
    types::own_spellings_end_the_same_on_both_sides,
    system::a_remote_is_bound_to_its_secret,
    system::accounts_and_notes,
    system::check_and_init_see_what_is_there,
    system::keys_go_behind_what_is_stored,
    grants::a_version_that_remotes_use_is_seen,
    system::a_remote_may_say_anything_of_its_ranges,
    kin::what_moves_takes_along_what_is_below_it,
    kin::what_stays_where_it_is_is_not_sent,
    kin::uploads_go_by_the_parent_as_it_is_stored,
    kin::uploads_go_by_the_parent_as_they_leave_it,
    kin::leaving_and_joining,
    shared::a_partition_is_read_once_and_topped_up,
    shared::a_row_that_had_moved_before_stays_where_it_is,
    shared::a_conflict_in_a_partition_that_comes_whole_ends_as_it_is_now,
    shared::what_another_life_of_the_database_built_is_given_up,
    shared::who_does_not_wait_any_longer_reads_it_himself,
    shared::whatever_is_written_a_remote_with_chunks_holds_the_same,
    shared::what_is_not_the_users_is_neither_built_nor_handed_out,
    shared::who_takes_no_chunks_gets_rows,
    estimate::a_download_is_as_large_as_expected,
    packing::a_knob_changes_how_full_frames_are_and_nothing_else,
    estimate::an_estimate_that_takes_too_long_ends,
    client_sql::two_connections_of_one_role_see_the_same,
    watch::every_change_of_a_table_is_told,
    watch::a_late_commit_is_told,
    watch::what_is_looked_into_is_one_query,
    watch::what_depends_on_more_than_tracked_tables_is_not_watched,
    watch::what_was_altered_is_looked_at_again,
}

/// For what needs no more of a database than that it runs queries.
macro_rules! contract_of_queries {
    ($($test:ident),* $(,)?) => {
        mod sqlite_queries {
            use super::*;
            $(#[test] fn $test() { results::$test(&Queried::of(Database::sqlite())); })*
        }
        mod postgres_queries {
            use super::*;
            $(#[test] fn $test() { results::$test(&Queried::of(Database::postgres())); })*
        }
        mod mariadb_queries {
            use super::*;
            $(#[test] fn $test() { results::$test(&Queried::mariadb()); })*
        }
    };
}

contract_of_queries! {
    values_and_types_of_any_query,
    a_table_that_was_altered_is_read_as_it_is,
    what_is_wrong_is_the_statement_or_its_values,
    parameters_of_every_type_are_what_they_are,
    decimals_are_compared_with_expressions_as_numbers,
    a_query_that_writes_is_refused,
    a_query_ends_when_it_must,
}

/// For tests that make their databases themselves.
macro_rules! of_themselves {
    ($($module:ident::$test:ident),* $(,)?) => {
        mod own {
            use super::*;
            $(#[test] fn $test() { $module::$test(); })*
        }
    };
}

of_themselves! {
    rebuilt::a_table_rebuilt_with_its_triggers_comes_whole,
    rebuilt::columns_that_are_not_what_they_were_come_whole,
    rebuilt::plain_columns_exchanged_by_rename_come_whole,
    rebuilt::tables_that_change_places_are_refused_or_come_whole,
    rebuilt::a_side_table_made_anew_sends_its_table_whole,
    rebuilt::what_leaves_tables_as_they_are_sends_nothing_again,
    rebuilt::what_leaves_no_trace_sends_again_what_may_have_lost_a_column,
    rebuilt::what_lies_below_a_rebuilt_table_comes_whole,
    rebuilt::tracking_again_hides_nothing,
    rebuilt::the_twelve_steps_beside_through,
    rebuilt::what_replace_deletes_by_an_expression_is_named,
    mark_states::a_mark_of_another_file_is_good_for_nothing,
    mark_states::a_mark_of_another_life_of_the_database_is_good_for_nothing,
}

contract_of! {
    sqlite_alone, sqlite:
    results::a_decimal_is_a_number_of_the_same_text,
    passing::a_full_disk_passes,
    equality::numbers_in_texts_are_one_partition,
    equality::references_are_found_by_names_in_other_case,
    types::numbers_in_columns_of_dates_meet_no_conflict,
    generated::a_column_that_is_generated_no_more_is_written,
    types::numbers_in_columns_of_dates_are_partitions,
    deferred::a_trigger_that_rolls_back_blocks_nothing,
    raised::an_expression_that_fails_is_the_rows,
    raised::a_trigger_that_does_not_fit_holds_up_its_table_alone,
}

contract_of! {
    postgres_sql_ascii, postgres_without_encoding:
    encodings::a_text_that_is_not_utf_8_holds_back_its_row_alone,
    encodings::a_membership_that_is_not_utf_8_is_left_out,
}

contract_of! {
    postgres_latin, postgres_in_latin:
    encodings::a_text_that_the_encoding_lacks_is_set_aside_alone,
}

contract_of! {
    postgres_alone, postgres:
    incarnation::own_tables_that_were_loaded_begin_an_incarnation,
    equality::both_zeros_are_one_partition,
    mark_states::what_names_types_and_rights_mean_is_part_of_a_mark,
    altered::a_query_reads_no_table_as_empty_that_is_rewritten,
    altered::an_answer_that_has_begun_ends_as_broken,
    settings::settings_of_a_database_change_nothing,
    attached::a_tracked_table_becomes_a_partition,
    attached::what_is_written_through_a_table_above_comes,
    results::what_says_now_is_read_for_each_run,
    both_ways::a_row_that_another_is_writing_is_judged_as_it_is_left,
    passing::a_deadlock_passes,
    passing::a_lock_that_is_not_had_in_time_passes,
    estimate::an_estimate_waits_for_no_lock,
    shared::a_transaction_open_at_the_build_is_not_missed,
    shared::row_security_keeps_a_table_from_being_shared,
    passing::a_connection_that_is_ended_passes,
    sessions::what_a_trigger_sets_does_not_outlive_its_upload,
    sessions::what_runs_late_or_early_does_not_outlive_its_upload_either,
    sessions::what_a_trigger_sets_does_not_reach_the_next_statement,
    sessions::a_query_leaves_no_lock,
    conflicts::a_statement_on_the_table_is_the_other_side_of_a_conflict,
    grants::a_missing_grant_holds_up_its_table_alone,
    grants::a_schema_that_may_not_be_used_holds_up_its_tables_alone,
    grants::a_table_that_does_not_fit_holds_up_itself_alone,
    grants::grants_that_are_missing_on_own_tables_are_named,
    grants::grants_that_the_functions_owner_lacks_are_named,
    conflicts::a_text_that_is_the_stored_value_comes_back_as_that,
    raised::an_error_of_any_code_is_the_rows,
    raised::a_row_that_a_trigger_gives_another_key_says_so,
    raised::what_returns_is_found_and_set_aside,
    raised::what_returns_at_the_end_is_found_too,
    deferred::what_breaks_a_deferred_constraint_is_refused_alone,
    deferred::rows_that_a_rule_holds_together_stay_together,
    deferred::rows_that_share_a_parent_stay_together,
    deferred::a_circle_that_only_a_deferred_constraint_allows,
    kin::a_child_written_while_its_parent_moves_is_not_missed,
    kin::a_move_that_sees_an_old_snapshot_sends_everything_below,
    refresh::the_table_of_an_older_build_goes_on_and_is_upgraded,
    refresh::rows_are_only_added_and_fold,
    refresh::the_cause_is_named_by_check,
    refresh::two_moves_that_see_old_snapshots_do_not_wait,
    moved::what_a_trigger_moves_comes_down_as_it_is,
    moved::what_a_script_stores_elsewhere_comes_down_as_it_is,
    moved::what_a_trigger_moved_comes_down_after_a_lost_receipt,
    moved::what_a_trigger_moved_comes_down_after_a_lost_download,
    races::whatever_the_order_of_two_transactions,
    races::whatever_the_order_without_foreign_keys,
    widened::columns_are_widened_without_a_word,
    widened::an_open_session_forgets_its_old_plans,
    widened::an_older_installation_is_widened_in_place,
    widened::what_does_not_fit_comes_afresh,
    widened::a_table_altered_beneath_its_tracking_stops_nobody,
    widened::circumstances_still_end_the_statement,
    widened::a_collation_of_another_equality_is_noticed,
    ddl::an_open_alteration_loses_no_changes,
    ddl::an_open_alteration_loses_no_row_of_a_new_remote,
    ddl::an_alteration_behind_the_snapshot_loses_no_changes,
    ddl::an_alteration_behind_the_snapshot_loses_no_row_of_a_new_remote,
    ddl::a_part_that_is_away_for_a_moment_is_not_missed,
    ddl::a_shared_partition_is_not_built_of_an_altered_table,
    ddl::a_ready_file_is_not_made_of_an_altered_table,
    table_identity::what_no_trigger_sees_comes_afresh,
    table_identity::partitions_are_followed_whatever_their_numbers,
    table_identity::exchanged_tables_are_refused_by_name,
    table_identity::an_upload_is_not_written_to_another_table,
    table_identity::a_table_exchanged_during_an_upload_is_not_written_to,
    table_identity::triggers_enabled_plainly_are_set_right_by_the_next_download,
    table_identity::triggers_that_are_off_are_enabled_by_track,
    table_identity::triggers_of_a_table_of_another_owner_wait_for_track,
    table_identity::exchanged_tables_keep_the_incarnation,
    table_identity::an_installation_without_records_gets_them,
    table_identity::tracking_again_hides_nothing,
    exposure::policies_that_change_bring_a_table_afresh,
    exposure::a_policy_that_reads_grants_holds_at_each_sync,
    exposure::a_policy_for_a_role_comes_and_goes_with_the_membership,
    exposure::a_policy_that_reads_a_setting_holds_at_each_sync,
    exposure::an_unlogged_table_is_refused,
    parts::a_part_out_of_reach_brings_its_table_whole,
}
