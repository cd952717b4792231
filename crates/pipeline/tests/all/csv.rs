//! Timetables as CSV: what is written is read again, in the words of PyTorch, and wrong cells are
//! found with their row and column.

use partita_pipeline::{Timetable, timetables};

#[test]
fn every_timetable_is_read_as_it_was_written() {
    for named in timetables::ALL {
        for p in 1..=5 {
            for m in [1, p, 2 * p + 1, 11] {
                let timetable = (named.make)(p, m);
                let text = timetable.to_csv();
                assert_eq!(text.lines().count(), p);
                assert_eq!(Timetable::from_csv(&text).unwrap(), timetable, "{}:\n{text}", named.name);
            }
        }
    }
}

#[test]
fn cells_are_those_of_pytorch() {
    assert_eq!(timetables::one_f_one_b(2, 2).to_csv(), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    assert_eq!(
        timetables::dualpipev(2, 4).to_csv(),
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,\
         0I3,0W3\n\
         1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,\
         1W3\n"
    );
}

#[test]
fn empty_cells_and_derived_cells_are_left_out() {
    let lowered = "\u{feff}0UNSHARD,0F0, 0SEND_F0 ,0F1,0SEND_F1,,0WAIT_SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,\
                   0WAIT_REDUCE_GRAD,0RESHARD\r\n\
                   ,1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1WAIT_SEND_B0,\r\n\r\n";
    assert_eq!(Timetable::from_csv(lowered).unwrap(), timetables::one_f_one_b(2, 2));
}

#[test]
fn the_lowered_form_of_pytorch_is_read() {
    // As torch 2.15 writes DualPipeV for 2 slices and 4 microbatches with all sends and gathers.
    let lowered = include_str!("data/dualpipev_2_4_lowered.csv");
    assert!(lowered.contains("0UNSHARD") && lowered.contains("RECV_B") && lowered.contains("OVERLAP_F_B"));
    assert_eq!(Timetable::from_csv(lowered).unwrap(), timetables::dualpipev(2, 4));
}

#[test]
fn forward_tasks_alone_are_inference() {
    assert_eq!(Timetable::from_csv("0F0,0F1,0F2\n1F0,1F1,1F2").unwrap(), timetables::inference(2, 3));
}

#[test]
fn wrong_cells_are_found_with_row_and_column() {
    for wrong in [
        "0X1",
        "F1",
        "0F",
        "0",
        "0f1",
        "0FB1",
        "0F1x",
        "0F-1",
        "-1F0",
        "0 F1",
        "½F0",
        "0SEND_X1",
        "SEND_F1",
        "99999999999999999999F0",
        "0F99999999999999999999",
        "99999999999999999999SEND_F0",
        "(0F1;0B0)",
        "(0F1)OVERLAP_F_B",
        "(0B0;0F1)OVERLAP_F_B",
        "(0F1;0W0)OVERLAP_F_B",
        "0F1;0B0)OVERLAP_F_B",
        "(0F1;0B0;0B1)OVERLAP_F_B",
        "OVERLAP_F_B",
        "\"0F1\"",
        "🙂",
    ] {
        let text = format!("0F0,0B0\n1F0,,{wrong},1B0\n");
        let error = Timetable::from_csv(&text).unwrap_err();
        assert_eq!(error.code, "E500", "`{wrong}`: {error}");
        assert_eq!(error.at.as_deref(), Some("row 2, column 3"));
        assert_eq!(error.found.as_deref(), Some(wrong));
    }
}

#[test]
fn texts_without_tasks_are_refused() {
    for empty in ["", "\n\n", ",,\n,", "0UNSHARD"] {
        assert_eq!(Timetable::from_csv(empty).unwrap_err().code, "E501", "`{empty}`");
    }
}

#[test]
fn numbers_that_leave_gaps_are_found_however_large() {
    for (text, at) in [
        ("0F0,0B0\n4000000000F0,1B0", "row 2, column 1"),
        ("0F0,0B4000000000", "row 1, column 2"),
        ("18446744073709551615F0", "row 1, column 1"),
        ("0F0,0F0,0F0,3F0", "row 1, column 4"),
        ("0F0,2F0", "row 1, column 2"),
        ("0F0,0F2", "row 1, column 2"),
    ] {
        let error = Timetable::from_csv(text).unwrap_err();
        assert_eq!((error.code, error.at.as_deref()), ("E502", Some(at)), "{error}");
    }
}

#[test]
fn orders_that_cannot_be_are_refused_when_read() {
    for (text, message) in [
        ("0F0,0F1,0B1\n1F0,1B0,1F1,1B1", "task 0B0 is missing"),
        ("0F0,0F1,0B0,0B1,0B1\n1F0,1B0,1F1,1B1", "task 0B1 appears twice"),
        ("0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1", "task 1B0 can never begin"),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", "tasks 0B0, 1F1 wait for each other"),
        ("0F0,0F1,0B0\n1F0,1B0,1F1,1B1,0B1", "task 0B1 is on the wrong slice: stage 0 is on two"),
    ] {
        let error = Timetable::from_csv(text).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), ("E461", message));
    }
}
