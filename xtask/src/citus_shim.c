/* What Citus 13.2.2, built with PostgreSQL 15.20, calls and an older 15 lacks. Loaded beside the
 * server of throw-away clusters only; a server that has these functions uses its own.
 */

#include <stdbool.h>
#include <stdint.h>

extern void *pg_detoast_datum(void *datum);

/* A macro in older headers. */
void *
DatumGetHeapTupleHeader(uintptr_t datum)
{
	return pg_detoast_datum((void *) datum);
}

/* A check that older servers do not make. */
void
heap_datum_check(void *tuple, void *descriptor)
{
	(void) tuple;
	(void) descriptor;
}

/* Private to older servers. Tests connect as the superuser, who may create databases. */
bool
have_createdb_privilege(void)
{
	return true;
}
