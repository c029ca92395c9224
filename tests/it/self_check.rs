//! The self-check from end to end: what is damaged is found, named and told until it is mended,
//! and nothing else ever is.

mod damage;
mod walks;

on_every_store! {
    walks {
        a_sound_store_is_checked_whole,
        a_wrong_total_pages_until_its_window_agrees,
        a_wrong_counter_pages_until_it_agrees,
        what_cannot_be_read_is_not_checked,
        a_walk_goes_on_after_a_crash,
        events_that_come_meanwhile_are_no_mismatch,
        a_store_that_is_down_is_not_checked,
        one_of_two_servers_walks,
        the_state_is_where_operators_look,
    }
}
