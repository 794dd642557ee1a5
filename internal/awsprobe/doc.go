// Package awsprobe finds out how AWS Cloud Map behaves where its documentation says nothing, or
// where the project relies on the documentation alone: command cloudmap-probe runs it in an account
// of AWS.
//
// Run makes the requests of twelve probes. Each adds rows to the Report and, where cloudmap-local
// has a switch for the answer, the value of that switch. Assumptions is the table of what the
// product assumes, with the probe that checks it.
package awsprobe
