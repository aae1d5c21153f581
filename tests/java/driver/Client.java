package driver;

/** A producer, a consumer or an administrator, used by one thread only. */
interface Client {

    /** Do what is asked; the result becomes JSON. */
    Object serve(Request request) throws Exception;

    /** Work that needs no request; says whether there was any, so that nobody need wait. */
    default boolean idle() {
        return false;
    }
}
